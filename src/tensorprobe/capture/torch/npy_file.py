"""Tensor files that every numpy reads: what numpy has no dtype for is written as float32, which loses nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from tensorprobe.capture.npy import write_npy
from tensorprobe.capture.torch.content import is_sparse, plain_content
from tensorprobe.capture.torch.tensor_copy import TensorCopy, memory_of


class NpyFiles:
    """Tensor files as numpy has them."""

    def write(self, tensor: torch.Tensor, file: BinaryIO) -> None:
        """A tensor of the host, alone in its storage."""
        plain = as_numpy_kind(tensor).contiguous()
        dtype = np.dtype(str(plain.dtype).removeprefix("torch."))
        write_npy(file, dtype, tuple(plain.shape), memory_of(plain))

    def write_copy(self, copy: TensorCopy, file: BinaryIO) -> None:
        self.write(copy.to_host(), file)

    def read(self, path: Path) -> torch.Tensor:
        """What a file holds; for verify mode."""
        return torch.from_numpy(np.load(path, allow_pickle=False))

    def stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a file of this tensor holds."""
        return as_numpy_kind(plain_content(tensor)).contiguous()


def as_numpy_kind(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor of a dtype that numpy has."""
    if is_sparse(tensor):
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    is_known = not tensor.dtype.is_floating_point or tensor.dtype in _NUMPY_FLOATS
    return tensor if is_known else tensor.to(torch.float32)


_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
