"""What is known of the tensor files of one dump, which a comparison reads several times."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tensorprobe.store.mirror import FileId

if TYPE_CHECKING:
    import torch

ContentId = bytes | FileId
"""What a file holds, or where that is not known, which file it is."""
_MAX_KEPT_BYTES = 256 << 20


class KeptTensors:
    """The files that were read last, because a value is looked at by its maker and its users, and in each replay."""

    def __init__(self) -> None:
        self.file_ids: dict[str, FileId | None] = {}
        """By the name that records have for it; equal for two names of one file, None where there is none."""
        self.is_same: dict[tuple[FileId, FileId], bool] = {}
        """Do two files hold the same bits?"""
        self.contents: dict[str, ContentId] = {}
        """By the same names; equal for files of the same bytes, of which most dumps have several of each: what a call
        gives, the next one takes."""
        self._tensors: OrderedDict[tuple[ContentId, torch.device], torch.Tensor] = OrderedDict()
        self._bytes = 0

    def find(self, content: ContentId, device: torch.device) -> torch.Tensor | None:
        tensor = self._tensors.get((content, device))
        if tensor is not None:
            self._tensors.move_to_end((content, device))
        return tensor

    def add(self, content: ContentId, device: torch.device, tensor: torch.Tensor) -> None:
        before = self._tensors.pop((content, device), None)
        self._tensors[content, device] = tensor
        self._bytes += tensor.nbytes - (0 if before is None else before.nbytes)
        while self._bytes > _MAX_KEPT_BYTES and len(self._tensors) > 1:
            _, dropped = self._tensors.popitem(last=False)
            self._bytes -= dropped.nbytes
