"""Which tensor of the replay stands for a tensor of the record.

A recorded tensor says which object of the program it was, in which storage and layout. The object decides, because two
tensors of one content may be two places in the graph of gradients. A tensor that no recorded call returned (`.T`, a
view that a library made) is made from another one of its storage. What nobody made is a leaf, read from its file.

Calls are executed in place on tensors that share memory as those of the program did, so that a later look through an
alias sees what was written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.capture.torch.node import find_node, is_leaf
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.view import view_storage
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.mirror import FileId

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
        kept: Iterable[int] = (),
    ) -> None:
        self._recorded = recorded
        self._read = read
        """Makes the tensor that stands for a leaf."""
        self.note_leaf: Callable[[Leaf, torch.Tensor], None] = lambda leaf, tensor: None
        """Told of a tensor that has become a leaf of the graph."""
        self.follows_all = False
        """Are gradients followed where the program did not? So it is in an autograd Function."""
        self._kept = Counter(kept)
        """Tensors that backward passes will look at, and how many."""
        self._over: set[int] = set()
        """Those of them that no call looks at any more."""
        self._by_tensor: dict[int, torch.Tensor] = {}
        self._by_parameter: dict[str, tuple[Leaf, torch.Tensor]] = {}
        self._by_layout: dict[Any, torch.Tensor] = {}
        self._by_storage: dict[int, list[tuple[Leaf, torch.Tensor, str | None]]] = {}
        self._by_file: dict[tuple[str, FileId], torch.Tensor] = {}
        self._seen: dict[int, Seen] = {}
        self.leaves: dict[int, tuple[Leaf, torch.Tensor]] = {}
        """What nobody made, by the address of the tensor that stands for it."""
        self.unseen_writes: list[UnseenWrite] = []

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """By their names in the model."""
        return {name: tensor for name, (_, tensor) in self._by_parameter.items()}

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
        found = self._find_parameter(leaf)
        if found is None:
            found = self._find_memory(leaf)
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
            leaf, is_wanted=lambda tensor, maker: maker == leaf.source and tensor.untyped_storage().data_ptr() != place
        )
        if found is not None:
            self._register(leaf, found)
        return found

    def find_followed(self, leaf: Leaf) -> torch.Tensor | None:
        """The same, followed by gradients if the program's was, and not if it was not."""
        found = self.find(leaf)
        if found is None or not leaf.is_floating or found.requires_grad == leaf.requires_grad:
            return found
        if leaf.requires_grad and is_leaf(found):  # `requires_grad_()` is no call that is recorded
            self.note_leaf(leaf, found.requires_grad_())
            return found
        # a parameter that is frozen for a while, or its `.data`
        return found.data if is_leaf(found) and not leaf.requires_grad and not self.follows_all else found

    def take(self, leaf: Leaf, operation: str) -> torch.Tensor:
        """The tensor that a call is given at this place; a leaf where nobody made it, or somebody wrote to it unseen.
        MissingContentError where it is a leaf and the dump has not got it."""
        found = self.find_followed(leaf)
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
        """No call looks at these any more."""
        for number in tensors:
            if self._kept[number] > 0:
                self._over.add(number)
            else:
                self._drop(number)
        for number in storages:
            for leaf, _, _ in self._by_storage.pop(number, ()):
                self._by_layout.pop(leaf.layout, None)

    def release(self, tensors: Iterable[int]) -> None:
        """A backward pass that looked at these is over."""
        for number in tensors:
            self._kept[number] -= 1
            if self._kept[number] <= 0 and number in self._over:
                self._drop(number)

    def _drop(self, number: int) -> None:
        self._by_tensor.pop(number, None)
        self._seen.pop(number, None)

    def _register(self, leaf: Leaf, tensor: torch.Tensor, maker: str | None = None) -> None:
        if leaf.tensor is not None:
            self._by_tensor[leaf.tensor] = tensor
        if leaf.parameter is not None:
            self._by_parameter[leaf.parameter] = leaf, tensor
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
        if self._is_same(seen.leaf, leaf):
            return False
        self.unseen_writes.append(UnseenWrite(operation, leaf, seen.leaf))
        return True

    def _is_same(self, before: Leaf, leaf: Leaf) -> bool:
        """Was the same content recorded of both? Yes, where the dump does not tell."""
        if leaf.is_undefined or before.is_undefined:
            return True
        first, second = self._recorded.file_id(before), self._recorded.file_id(leaf)
        try:
            if first is None or second is None:
                return has_same_statistics(before, leaf)
            return self._recorded.is_same(first, second, before, leaf)
        except MissingContentError:
            return True

    def _find_parameter(self, leaf: Leaf) -> torch.Tensor | None:
        """By its name. In memory that it was not seen in: the program gave it another (`p.data = x`), or looks at it in
        another window. It stays the same leaf of the graph."""
        before, tensor = self._by_parameter.get(leaf.parameter or "", (leaf, None))
        if tensor is None or tuple(tensor.shape) != leaf.shape:
            return None
        if leaf.storage is None or leaf.storage == before.storage:
            return tensor
        content = self._find_memory(leaf)
        if content is not None:
            tensor.data = content.detach()
        elif not self._is_same(before, leaf):
            tensor.data = self._read(leaf).detach()
        return tensor

    def _find_memory(self, leaf: Leaf) -> torch.Tensor | None:
        """By the memory that it shows."""
        if leaf.storage is None:
            return None
        found = self._by_layout.get(leaf.layout) if leaf.view_of is None else self._view_storage(leaf, leaf.view_of)
        if found is None:
            found = self._view_storage(leaf)
        if leaf.starts_graph:
            return found.detach() if found is not None else None
        if leaf.requires_grad and (found is None or not has_place(found)):
            hanging = self._view_storage(leaf, is_wanted=lambda tensor, _: has_place(tensor))
            found = hanging if hanging is not None else found
        if found is None or leaf.requires_grad or not found.requires_grad or self.follows_all:
            return found
        return found.data  # `y.data` is another tensor than y

    def _view_storage(
        self, leaf: Leaf, base: int | None = None, is_wanted: Wanted = lambda tensor, maker: True
    ) -> torch.Tensor | None:
        """A view that no recorded call made, of a storage that is known; `base`: of the tensor with this number."""
        known = self._by_storage.get(leaf.storage or 0, [])
        looked_at = [known[0], *known[-_LOOKED_AT:]] if known else []
        found = [
            (shown, tensor)
            for shown, tensor, maker in looked_at
            if is_wanted(tensor, maker) and base in (None, shown.tensor) and tuple(tensor.shape) == shown.shape
        ]
        return view_storage(found, leaf)


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
    return find_node(tensor) is not None or (tensor.requires_grad and tensor._base is None)


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
