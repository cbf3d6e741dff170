"""What is known of the tensor files of one dump, which a comparison reads several times."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tensorprobe.store.mirror import FileId

if TYPE_CHECKING:
    import torch

_MAX_KEPT_BYTES = 256 << 20


class KeptTensors:
    """The files that were read last, because a value is looked at by its maker and its users, and in each replay."""

    def __init__(self) -> None:
        self.file_ids: dict[str, FileId | None] = {}
        """By the name that records have for it; equal for two names of one file, None where there is none."""
        self.is_same: dict[tuple[FileId, FileId], bool] = {}
        """Do two files hold the same bits?"""
        self._tensors: OrderedDict[tuple[FileId, torch.device], torch.Tensor] = OrderedDict()
        self._bytes = 0

    def find(self, file_id: FileId, device: torch.device) -> torch.Tensor | None:
        tensor = self._tensors.get((file_id, device))
        if tensor is not None:
            self._tensors.move_to_end((file_id, device))
        return tensor

    def add(self, file_id: FileId, device: torch.device, tensor: torch.Tensor) -> None:
        before = self._tensors.pop((file_id, device), None)
        self._tensors[file_id, device] = tensor
        self._bytes += tensor.nbytes - (0 if before is None else before.nbytes)
        while self._bytes > _MAX_KEPT_BYTES and len(self._tensors) > 1:
            _, dropped = self._tensors.popitem(last=False)
            self._bytes -= dropped.nbytes
