"""Which tensor of the replay stands for a tensor of the record.

A recorded tensor says which object of the program it was, in which storage and layout. The object decides, because two
tensors of one content may be two places in the graph of gradients. A tensor that no recorded call returned (`.T`, a
view that a library made) is made from another one of its storage. What nobody made is a leaf, read from its file.

Calls are executed in place on tensors that share memory as those of the program did, so that a later look through an
alias sees what was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.replay.argument import Leaf
from tensorprobe.replay.recorded import FileId, MissingContentError, RecordedTensors
from tensorprobe.replay.view import view_storage


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
        self._by_storage: dict[int, list[tuple[Leaf, torch.Tensor]]] = {}
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
        """The tensor that stands for this one, if there is one already."""
        if leaf.tensor is not None and leaf.tensor in self._by_tensor:
            return self._by_tensor[leaf.tensor]
        if leaf.parameter is not None and leaf.parameter in self._by_parameter:
            found: torch.Tensor | None = self._move_parameter(leaf, *self._by_parameter[leaf.parameter])
        else:
            found = self._find_memory(leaf)
        if found is None and leaf.source is not None:
            file_id = self._recorded.file_id(leaf)
            found = self._by_file.get((leaf.source, file_id)) if file_id is not None else None
        if found is not None:
            self._register(leaf, found)
        return found

    def find_followed(self, leaf: Leaf) -> torch.Tensor | None:
        """The same, followed by gradients if the program's was, and not if it was not."""
        found = self.find(leaf)
        if found is None or not leaf.is_floating or found.requires_grad == leaf.requires_grad:
            return found
        if leaf.requires_grad and found.grad_fn is None:  # `requires_grad_()` is no call that is recorded
            self.note_leaf(leaf, found.requires_grad_())
            return found
        # a parameter that is frozen for a while, or its `.data`
        return found.data if found.is_leaf and not leaf.requires_grad and not self.follows_all else found

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
        self._register(leaf, tensor)
        self._look(leaf, maker)
        file_id = self._recorded.file_id(leaf) if leaf.tensor is None and maker is not None else None
        if file_id is not None and maker is not None:
            self._by_file[maker, file_id] = tensor

    def forget(self, tensors: Iterable[int], storages: Iterable[int]) -> None:
        """No call looks at these any more."""
        for number in tensors:
            if self._kept[number] > 0:
                self._over.add(number)
            else:
                self._drop(number)
        for number in storages:
            for leaf, _ in self._by_storage.pop(number, ()):
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

    def _register(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        if leaf.tensor is not None:
            self._by_tensor[leaf.tensor] = tensor
        if leaf.parameter is not None:
            self._by_parameter[leaf.parameter] = leaf, tensor
        if leaf.storage is not None:
            self._by_layout[leaf.layout] = tensor
            self._by_storage.setdefault(leaf.storage, []).append((leaf, tensor))

    def _look(self, leaf: Leaf, maker: str | None) -> None:
        if leaf.tensor is not None:
            self._seen[leaf.tensor] = Seen(leaf, self._recorded.file_id(leaf), maker)

    def _is_written_unseen(self, leaf: Leaf, operation: str) -> bool:
        seen = self._seen.get(leaf.tensor) if leaf.tensor is not None else None
        if seen is None or seen.file_id is None or leaf.source not in (None, seen.maker):
            return False
        if self._is_same(seen.leaf, leaf):
            return False
        self.unseen_writes.append(UnseenWrite(operation, leaf, seen.leaf))
        return True

    def _is_same(self, before: Leaf, leaf: Leaf) -> bool:
        """Was the same content recorded of both? Yes, where the dump does not tell."""
        first, second = self._recorded.file_id(before), self._recorded.file_id(leaf)
        try:
            return first is None or second is None or self._recorded.is_same(first, second, before, leaf)
        except MissingContentError:
            return True

    def _move_parameter(self, leaf: Leaf, before: Leaf, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter in memory that it was not seen in: the program gave it another (`p.data = x`), or looks at it in
        another window. It stays the same leaf of the graph."""
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
        known = self._by_storage.get(leaf.storage, ()) if leaf.storage is not None else ()
        if leaf.view_of is not None:
            found = view_storage([one for one in known if one[0].tensor == leaf.view_of], leaf)
        else:
            found = self._by_layout.get(leaf.layout) if leaf.layout is not None else None
        if found is None:
            found = view_storage(known, leaf)
        if found is None or leaf.requires_grad or not found.requires_grad or self.follows_all:
            return found
        return found.data  # `y.data` is another tensor than y


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
