"""Which tensor of the replay stands for a tensor of the record.

A recorded tensor says which object of the program it was, in which storage and layout. The object decides, because two
tensors of one content may be two places in the graph of gradients. A tensor that no recorded call returned (`.T`, a
view that a library made) is made from another one of its storage. What nobody made is a leaf, read from its file.

Calls are executed in place on tensors that share memory as those of the program did, so that a later look through an
alias sees what was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.recorded import FileId, MissingContentError, RecordedTensors

_SUM_ORDER = 1e-6
"""A norm is a sum, and its last digits depend on the order in which its elements lie in memory."""
_LOOKED_AT = 256
"""Among so many latest tensors of a storage, and its first, one is looked for that shows what another one shows."""
Wanted = Callable[[torch.Tensor, str | None], bool]
"""Told a tensor and the call that made it."""


@dataclass(slots=True)
class Seen:
    """The last recorded look at a tensor."""

    leaf: Leaf
    file_id: FileId | None
    maker: str | None
    """The call that had made, or last written, what was seen."""


@dataclass(frozen=True, slots=True)
class UnseenWrite:
    """A value that changed between two recorded looks at it, and no recorded call wrote it."""

    operation: str
    leaf: Leaf
    before: Leaf


class Workspace:
    """The tensors of a replay by what the record says of them."""

    def __init__(
        self,
        recorded: RecordedTensors,
        read: Callable[[Leaf], torch.Tensor],
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._recorded = recorded
        self._read = read
        """Makes the tensor that stands for a leaf."""
        self._kept = kept
        self._by_tensor: dict[int, torch.Tensor] = {}
        self._by_parameter: dict[str, torch.Tensor] = {}
        self._by_layout: dict[Any, torch.Tensor] = {}
        self._by_storage: dict[int, list[tuple[Leaf, torch.Tensor, str | None]]] = {}
        self._by_file: dict[tuple[str, FileId], torch.Tensor] = {}
        self._seen: dict[int, Seen] = {}
        self.leaves: dict[int, tuple[Leaf, torch.Tensor]] = {}
        """What nobody made, by the address of the tensor that stands for it."""
        self.unseen_writes: list[UnseenWrite] = []

    def find(self, leaf: Leaf) -> torch.Tensor | None:
        """The tensor that stands for this one, if there is one already. Numbers may be wrong: one of another shape is
        another tensor."""
        found = self._find(leaf)
        return found if found is not None and tuple(found.shape) == leaf.shape else None

    def count_bytes(self) -> int:
        """How much memory the tensors take that are still looked at."""
        kept = [tensor for pairs in self._by_storage.values() for _, tensor, _ in pairs]
        kept += [tensor for _, tensor in self.leaves.values()]
        kept += [*self._by_tensor.values(), *self._by_layout.values(), *self._by_file.values()]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
        return sum(storages.values())

    def _find(self, leaf: Leaf) -> torch.Tensor | None:
        if leaf.tensor is not None and leaf.tensor in self._by_tensor:
            rewritten = self._find_rewritten(leaf, self._by_tensor[leaf.tensor])
            return rewritten if rewritten is not None else self._by_tensor[leaf.tensor]
        if leaf.parameter is not None and leaf.parameter in self._by_parameter:  # seen in another window
            parameter = self._by_parameter[leaf.parameter]
            if tuple(parameter.shape) == leaf.shape:
                return parameter
        found = self._by_layout.get(leaf.layout) if leaf.layout is not None else None
        if found is None and leaf.storage is not None:
            found = self._view_storage(leaf)
        if leaf.requires_grad and leaf.storage is not None and (found is None or not has_place(found)):
            hanging = self._view_storage(leaf, lambda tensor, _: has_place(tensor))
            found = hanging if hanging is not None else found
        if found is None and leaf.source is not None:
            file_id = self._recorded.file_id(leaf)
            found = self._by_file.get((leaf.source, file_id)) if file_id is not None else None
        if found is not None:
            self._register(leaf, found)
        return found

    def _find_rewritten(self, leaf: Leaf, known: torch.Tensor) -> torch.Tensor | None:
        """Where a call has written to its memory through a tensor that shows more of it than was known: a view of that
        one."""
        seen = self._seen.get(leaf.tensor) if leaf.tensor is not None else None
        if leaf.source is None or leaf.storage is None or seen is None or leaf.source == seen.maker:
            return None
        place = known.untyped_storage().data_ptr()
        found = self._view_storage(
            leaf, lambda tensor, maker: maker == leaf.source and tensor.untyped_storage().data_ptr() != place
        )
        if found is not None:
            self._register(leaf, found)
        return found

    def read(self, seed: Leaf | None, root: torch.Tensor) -> torch.Tensor:
        """The gradient that a backward pass begins with, as it was recorded; ones where it was not."""
        if seed is not None:
            try:
                return self._recorded.load(seed).to(root.dtype)
            except MissingContentError:
                pass  # ones, as below
        return torch.ones_like(root)

    def tensor(self, number: int | None) -> torch.Tensor | None:
        """The tensor that stands for the object with this number."""
        return self._by_tensor.get(number) if number is not None else None

    def take(self, leaf: Leaf, operation: str) -> torch.Tensor:
        """The tensor that a call is given at this place; a leaf where nobody made it, or somebody wrote to it unseen.
        MissingContentError where it is a leaf and the dump has not got it."""
        found = self.find(leaf)
        if found is not None and not self._is_written_unseen(leaf, operation):
            self._look(leaf, leaf.source)
            return found
        tensor = self._read(leaf)
        self.leaves[id(tensor)] = (leaf, tensor)
        self.add(leaf, tensor, None)
        return tensor

    def add(self, leaf: Leaf, tensor: torch.Tensor, maker: str | None) -> None:
        """A call has returned a tensor, or a leaf was read."""
        self._register(leaf, tensor, maker)
        self._look(leaf, maker)
        file_id = self._recorded.file_id(leaf) if leaf.tensor is None and maker is not None else None
        if file_id is not None and maker is not None:
            self._by_file[maker, file_id] = tensor

    def exchange(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """From now on another tensor stands for this one; it shows the same."""
        self._register(leaf, tensor)

    def put(self, number: int | None, tensor: torch.Tensor) -> None:
        """This tensor stands for the object with this number; others in its memory stay what they are."""
        if number is not None:
            self._by_tensor[number] = tensor

    def write(self, leaf: Leaf, content: torch.Tensor) -> None:
        """What lies in the memory of a tensor has changed."""
        found = self.find(leaf)
        if found is not None:
            found.data.copy_(content)
        for number in [number for number, seen in self._seen.items() if seen.leaf.storage == leaf.storage]:
            del self._seen[number]  # what it held before does not count any more

    def forget_gradients(self) -> None:
        """Those that are added up in the leaves."""
        for _, tensor in self.leaves.values():
            tensor.grad = None

    def forget(self, tensors: Iterable[int], storages: Iterable[int]) -> None:
        """Nobody looks at these any more."""
        for number in set(tensors) - self._kept:
            self._by_tensor.pop(number, None)
            self._seen.pop(number, None)
        for number in storages:
            for leaf, _, _ in self._by_storage.pop(number, ()):
                self._by_layout.pop(leaf.layout, None)

    def _register(self, leaf: Leaf, tensor: torch.Tensor, maker: str | None = None) -> None:
        if leaf.tensor is not None:
            self._by_tensor[leaf.tensor] = tensor
        if leaf.parameter is not None:
            self._by_parameter[leaf.parameter] = tensor
        if leaf.storage is not None:
            self._by_layout[leaf.layout] = tensor
            self._by_storage.setdefault(leaf.storage, []).append((leaf, tensor, maker))

    def _look(self, leaf: Leaf, maker: str | None) -> None:
        if leaf.tensor is not None:
            self._seen[leaf.tensor] = Seen(leaf, self._recorded.file_id(leaf), maker)

    def _is_written_unseen(self, leaf: Leaf, operation: str) -> bool:
        seen = self._seen.get(leaf.tensor) if leaf.tensor is not None else None
        if seen is None or leaf.source not in (None, seen.maker):
            return False
        if leaf.is_undefined or seen.leaf.is_undefined:
            return False
        file_id = self._recorded.file_id(leaf)
        try:
            if file_id is None or seen.file_id is None:
                is_same = has_same_statistics(seen.leaf, leaf)
            else:
                is_same = self._recorded.is_same(seen.file_id, file_id, seen.leaf, leaf)
            if is_same:
                return False
        except MissingContentError:
            return False
        self.unseen_writes.append(UnseenWrite(operation, leaf, seen.leaf))
        return True

    def _view_storage(self, leaf: Leaf, is_wanted: Wanted = lambda tensor, maker: True) -> torch.Tensor | None:
        """A view that no recorded call made, of a storage that is known."""
        known = self._by_storage.get(leaf.storage or 0, [])
        for base, tensor, maker in reversed([known[0], *known[-_LOOKED_AT:]] if known else ()):
            if base.dtype == leaf.dtype and is_wanted(tensor, maker):
                view = view_of(tensor, base, leaf)
                if view is not None:
                    return view
        return None


def has_same_statistics(first: Leaf, second: Leaf) -> bool:
    """Do two looks at one tensor tell of the same content, as far as statistics do?"""
    for name in ("Max", "Min", "Norm"):
        one, other = first.fields.get(name), second.fields.get(name)
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            is_known = not math.isnan(one) and not math.isnan(other)
            if is_known and not math.isclose(one, other, rel_tol=_SUM_ORDER):
                return False
    return True


def has_place(tensor: torch.Tensor) -> bool:
    """Has it a place in the graph? A view that was made without gradients only says that it needs some."""
    return tensor.grad_fn is not None or (tensor.requires_grad and tensor._base is None)


def lay_out(content: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """A tensor of its own with the strides that were recorded, so that kernels add in the same order."""
    stride = leaf.stride
    if stride is None:
        return content.clone(memory_format=torch.contiguous_format)
    if any(step == 0 and size > 1 for step, size in zip(stride, leaf.shape, strict=True)):
        narrow = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
        return content[narrow].clone().expand(leaf.shape)
    order = sorted(range(content.dim()), key=lambda dim: (-stride[dim], dim))
    inverse = [order.index(dim) for dim in range(content.dim())]
    return content.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def view_of(tensor: torch.Tensor, base: Leaf, leaf: Leaf) -> torch.Tensor | None:
    """What `leaf` shows, as a view of the tensor that stands for `base`; None where it shows more than that."""
    stride = base.stride if base.stride is not None else contiguous_stride(base.shape)
    order = sorted(range(len(stride)), key=lambda dim: (-stride[dim], dim))
    expected = 1
    for dim in reversed(order):
        if base.shape[dim] != 1:
            if stride[dim] != expected:
                return None  # gaps: its elements cannot be numbered by their places
            expected *= base.shape[dim]
    wanted = leaf.stride if leaf.stride is not None else contiguous_stride(leaf.shape)
    offset = leaf.offset - base.offset
    last = offset + sum((size - 1) * step for size, step in zip(leaf.shape, wanted, strict=True) if size)
    if offset < 0 or last >= max(expected, 1) or 0 in leaf.shape:
        return None
    if tuple(tensor.shape) != base.shape:
        return None
    flat = tensor.permute(order).reshape(-1)
    return flat.as_strided(leaf.shape, wanted, flat.storage_offset() + offset)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """
    >>> contiguous_stride((2, 3, 4))
    (12, 4, 1)
    """
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
