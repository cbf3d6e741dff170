"""The recorded tensors of a step, read from their files when they are asked for."""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.errors import DumpError
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.kept_tensor import ContentId, KeptTensors
from tensorprobe.replay.precision import tensor_from_array, torch_dtype
from tensorprobe.run.leaf import LENT, Leaf
from tensorprobe.store import stored_file
from tensorprobe.store.mirror import FileId
from tensorprobe.store.reader import RankDump
from tensorprobe.store.tensor_file import identify_bytes, open_tensor


class MissingContentError(Exception):
    """The dump does not have the content of a tensor."""


class RecordedTensors:
    """What was recorded, as tensors. Who reads with the same `kept` reads no file twice."""

    def __init__(
        self, rank: RankDump, device: torch.device, kept: KeptTensors | None = None, *, chooses_anew: bool = False
    ) -> None:
        self._rank = rank
        self.device = device
        self.chooses_anew = chooses_anew or self.is_lent
        """Are choices, masks and indices not taken from here, but made again?"""
        self._kept = KeptTensors() if kept is None else kept
        self._came_later: dict[Any, Leaf] = {}

    def note_late(self, leaf: Leaf) -> None:
        """The result of a collective. Calls that were given it while it was on its way have no file of it."""
        if leaf.layout is not None:
            self._came_later[leaf.layout] = leaf

    @property
    def is_lent(self) -> bool:
        """Do only its leaves have files, which are another run's? Then nothing was decided by these numbers yet."""
        return LENT in self._rank.header

    @property
    def has_no_dropout(self) -> bool:
        """Were the dropouts of the run removed?"""
        settings = self._rank.run.get("settings")
        return isinstance(settings, dict) and settings.get("dropout_removed") is True

    def file_id(self, leaf: Leaf) -> FileId | None:
        """Which file holds it; None where none does."""
        if leaf.data_name is None:
            leaf = self._came_later.get(leaf.layout, leaf)
        if leaf.data_name is None:
            return None
        known = self._kept.file_ids
        if leaf.data_name not in known:
            known[leaf.data_name] = self._identify(leaf.data_name)
        return known[leaf.data_name]

    def _identify(self, data_name: str) -> FileId | None:
        try:
            return stored_file.identify(self._rank.tensor_path(data_name))
        except DumpError:
            return None

    def load(self, leaf: Leaf) -> torch.Tensor:
        """The content in its recorded precision. It is shared: nobody writes to it."""
        file_id = self.file_id(leaf)
        if leaf.data_name is None:
            leaf = self._came_later.get(leaf.layout, leaf)
        if file_id is None or leaf.data_name is None:
            raise MissingContentError(f"{leaf.slot}: there is no file of it")
        try:
            dtype = torch_dtype(leaf.dtype)
        except UnknownArgumentError as error:
            raise MissingContentError(str(error)) from error
        content = self._find_content(leaf.data_name, file_id)
        kept = self._kept.find(content, self.device)
        if kept is not None and (tuple(kept.shape), kept.dtype) == (leaf.stored_shape, dtype):
            return kept
        try:
            array = open_tensor(self._rank.tensor_path(leaf.data_name), leaf.fields.get("dtype"))
            tensor = tensor_from_array(array, dtype)
        except (DumpError, UnknownArgumentError) as error:
            raise MissingContentError(str(error)) from error
        if tensor.dtype != dtype:
            raise MissingContentError(f"{leaf.data_name} holds {tensor.dtype}, and {leaf.dtype} was recorded")
        if tuple(tensor.shape) != leaf.stored_shape:
            raise MissingContentError(
                f"{leaf.data_name} holds {list(tensor.shape)}, and {list(leaf.stored_shape)} was recorded"
            )
        tensor = tensor.to(self.device)
        self._kept.add(content, self.device, tensor)
        return tensor

    def _find_content(self, data_name: str, file_id: FileId) -> ContentId:
        known = self._kept.contents
        if data_name not in known:
            known[data_name] = identify_bytes(self._rank.tensor_path(data_name)) or file_id
        return known[data_name]

    def is_same(self, first: FileId, second: FileId, first_leaf: Leaf, second_leaf: Leaf) -> bool:
        """Do two files hold the same bits?"""
        if first == second:
            return True
        key = (min(first, second), max(first, second))
        if key not in self._kept.is_same:
            self._kept.is_same[key] = self._holds_same(first, second, first_leaf, second_leaf)
        return self._kept.is_same[key]

    def _holds_same(self, first: FileId, second: FileId, first_leaf: Leaf, second_leaf: Leaf) -> bool:
        if first_leaf.data_name is not None and second_leaf.data_name is not None:
            contents = [
                self._find_content(first_leaf.data_name, first),
                self._find_content(second_leaf.data_name, second),
            ]
            is_alike = (first_leaf.dtype, first_leaf.stored_shape) == (second_leaf.dtype, second_leaf.stored_shape)
            if is_alike and contents[0] == contents[1]:
                return True
        return is_bit_equal(self.load(first_leaf), self.load(second_leaf))


def is_bit_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """The same numbers, NaN being equal to NaN, and 0.0 to -0.0 only by its bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return bool(torch.equal(first, second))
    return bool(torch.equal(bits_of(first), bits_of(second)))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    content = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if content.is_complex():
        content = torch.view_as_real(content)
    return content.view(_BITS[content.element_size()])
