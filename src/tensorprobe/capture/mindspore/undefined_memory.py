"""Memory that nobody has written to since it was handed out: what `mint.empty` returns. What is computed from it means
nothing either, until something defined is written into it.

Known by the address of its storage, for as long as a tensor that was seen with it lives, and by the bytes in it: views
share them. MindSpore shows no write by itself, so the calls are followed: by their names.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import Tensor

from tensorprobe.capture.byte_range import NOTHING, Ranges, intersect, ranges_of, subtract, unite
from tensorprobe.capture.mindspore.api_name import Api
from tensorprobe.capture.mindspore.content import missing_content, wait_for
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.model.undefined import UNDEFINED_MEMORY

_IGNORES_CONTENT = re.compile(r"(zeros|ones|full|rand|randn|randint)_like|new_(zeros|ones|full)")
_OVERWRITES = re.compile(
    r"(copy|fill|zero|normal|uniform|random|exponential|bernoulli)_|Assign|"
    r"Inplace(Copy|Fill|Zero|Normal|Uniform|Random|Exponential|Bernoulli).*"
)
_CHANGES = re.compile(r".*[^_]_|__i\w+__|Inplace.*|Assign.*|Scatter.*")
_MAX_HOLDERS = 64
_BASIC_INDICES = (int, slice, type(None), type(Ellipsis))


class UndefinedStorage:
    """The undefined bytes of one storage, and the tensors that were seen with it."""

    __slots__ = ("holders", "ranges")

    def __init__(self) -> None:
        self.ranges: Ranges = NOTHING
        self.holders: dict[int, weakref.ref[Tensor]] = {}

    def add_holder(self, tensor: Tensor) -> None:
        if len(self.holders) >= _MAX_HOLDERS:
            self.holders = {key: holder for key, holder in self.holders.items() if holder() is not None}
        self.holders[id(tensor)] = weakref.ref(tensor)

    @property
    def is_held(self) -> bool:
        return any(holder() is not None for holder in self.holders.values())


class UndefinedMemory:
    """All of it that is known in a window. Empty most of the time, which costs nothing."""

    def __init__(self) -> None:
        self._storages: dict[int, UndefinedStorage] = {}

    def __len__(self) -> int:
        return len(self._storages)

    def has(self, tensor: Tensor) -> bool:
        """Is any of this tensor undefined?"""
        found = self._find(tensor)
        return found is not None and len(intersect(found[1].ranges, bytes_of(tensor))) > 0

    def mark(self, tensor: Tensor) -> None:
        """All of this tensor is undefined from now on."""
        address = address_of(tensor)
        if address is not None:
            found = self._find(tensor)
            known = found[1] if found is not None else self._storages.setdefault(address, UndefinedStorage())
            known.add_holder(tensor)
            known.ranges = unite(known.ranges, bytes_of(tensor))

    def define(self, tensor: Tensor) -> None:
        """Something defined was written to all of it."""
        found = self._find(tensor)
        if found is not None:
            found[1].ranges = subtract(found[1].ranges, bytes_of(tensor))
            if not len(found[1].ranges):
                del self._storages[found[0]]

    def forget(self) -> None:
        """Take everything as data."""
        self._storages.clear()

    def _find(self, tensor: Tensor) -> tuple[int, UndefinedStorage] | None:
        address = address_of(tensor) if self._storages else None
        known = self._storages.get(address) if address is not None else None
        if address is None or known is None:
            return None
        if not known.is_held:  # all are gone: the memory is used again
            del self._storages[address]
            return None
        known.add_holder(tensor)
        return address, known


class MemoryTracer:
    """What calls do to undefined memory."""

    def __init__(self, memory: UndefinedMemory) -> None:
        self._memory = memory

    def begin(self, api: Api, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
        """Before a call: what it reads and is undefined."""
        if not self._memory:
            return []
        name = api.stem.rpartition(".")[2]
        if _IGNORES_CONTENT.fullmatch(name):
            return []
        is_target_read = not _OVERWRITES.fullmatch(name) and name != "__setitem__"
        with hidden():
            given = tensors_in((args if is_target_read else args[1:], kwargs))
            return [tensor for tensor in given if self._memory.has(tensor)]

    def end(self, api: Api, read: list[Tensor], args: Sequence[Any], output: Any) -> None:
        """After a call."""
        if not self._memory and api.note != UNDEFINED_MEMORY:
            return
        name = api.stem.rpartition(".")[2]
        with hidden():
            if api.note == UNDEFINED_MEMORY or (read and not _CHANGES.fullmatch(name) and name != "__setitem__"):
                self._mark_results(read, output)
            elif _OVERWRITES.fullmatch(name) or name == "__setitem__":
                self._overwrite(find_target(name, args), read)
            elif read and any(tensor is not args[0] for tensor in read):
                self._overwrite(args[0], read)

    def define_all(self, tree: Any) -> None:
        """A collective was given these: what it writes to, and what it does not, is data."""
        if self._memory:
            for tensor in tensors_in(tree):
                self._memory.define(tensor)

    def _mark_results(self, read: list[Tensor], output: Any) -> None:
        """What is new, not a view of an argument."""
        shared = {address_of(tensor) for tensor in read}
        for tensor in tensors_in(output):
            if address_of(tensor) not in shared:
                self._memory.mark(tensor)

    def _overwrite(self, target: Any, read: list[Tensor]) -> None:
        if isinstance(target, Tensor):
            if read:
                self._memory.mark(target)
            else:
                self._memory.define(target)


def find_target(name: str, args: Sequence[Any]) -> Any:
    """What a call writes to: of `x[1:] = y`, that part of x."""
    index = args[1] if name == "__setitem__" and len(args) == 3 else None
    parts = index if isinstance(index, tuple) else (index,)
    is_basic = all(isinstance(part, _BASIC_INDICES) and not isinstance(part, bool) for part in parts)
    return args[0][index] if index is not None and is_basic else args[0] if args else None


def address_of(tensor: Tensor) -> int | None:
    """What tensors that share their memory share; None if a tensor has none yet."""
    wait_for(tensor)
    if missing_content(tensor) is not None:
        return None
    return int(tensor.untyped_storage().data_ptr())


def bytes_of(tensor: Tensor) -> Ranges:
    """Where its elements lie in its storage."""
    return ranges_of(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.itemsize)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)
