"""Runs that were recorded with task `statistics`, with numbers to start from.

Their record says which calls were made, of which tensors; only the numbers are missing. Tensors of both runs that have
the same statistics are the same. If the other run has files, it lends them. If neither has, numbers are drawn: two
programs that mean the same compute the same of any numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tensorprobe.compare.measure.statistic_measure import sketched_distance
from tensorprobe.compare.truth.drawing import can_draw, draw
from tensorprobe.errors import DumpError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.run.leaf import LENT, is_tensor
from tensorprobe.run.step import Run
from tensorprobe.store.reader import RankDump, Record
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot, iter_slots
from tensorprobe.store.tensor_file import open_tensor

Array = np.ndarray[Any, Any]
_BORROWING = ("input_args", "input_kwargs", "parameters", "buffers", "calls")
"""The fields of a forward record in which leaves are."""
_MAX_TURNED_DIMENSIONS = 4
_RESOLUTION = 2e-6
"""Means and norms of the same numbers, summed in another order, may be so far apart."""


def lend_leaves(reference: Run, candidate: Run) -> tuple[Run, Run]:
    """Both runs; what was recorded with statistics only, with tensors of the other run, or with drawn ones."""
    tasks = [run.rank.header.get("task") for run in (reference, candidate)]
    if tasks == ["statistics", "tensor"]:
        return _lend(Lender(candidate.rank), reference), candidate
    if tasks == ["tensor", "statistics"]:
        return reference, _lend(Lender(reference.rank), candidate)
    if tasks == ["statistics", "statistics"] and _have_same_leaves(reference, candidate):
        drawer = Drawer()
        return _lend(drawer, reference), _lend(drawer, candidate)
    return reference, candidate


def find_borrowers(reference: Run, candidate: Run) -> tuple[str, ...]:
    """The sides that start from tensors that are not their own."""
    sides = (("reference", reference), ("candidate", candidate))
    return tuple(side for side, run in sides if isinstance(run.rank, BorrowingRank))


def _lend(source: Lender, borrower: Run) -> Run:
    fields = {name: getattr(borrower.rank, name) for name in RankDump.__dataclass_fields__}
    return replace(borrower, rank=BorrowingRank(**fields, source=source))


def _have_same_leaves(reference: Run, candidate: Run) -> bool:
    """Has each tensor that both start from a counterpart? Of others nothing is known, not even how they are made of
    each other."""
    sides = [list(_iter_leaves(run)) for run in (reference, candidate)]
    for own, others in (sides, reversed(sides)):
        index: dict[object, list[TensorSlot]] = {}
        for slot in others:
            index.setdefault(_extremes(slot), []).append(slot)
        if not all(any(_has_same_numbers(slot, other) for other in index.get(_extremes(slot), ())) for slot in own):
            return False
    return True


def _iter_leaves(run: Run) -> Iterator[TensorSlot]:
    for call in run.calls:
        for slot in call.tensors if call.direction == FORWARD else ():
            if slot.is_input and slot.source is None and slot.max is not None and slot.max != slot.min:
                yield slot


class Lender:
    """The tensors of a dump, found by what another one says of them."""

    def __init__(self, rank: RankDump | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="tensorprobe-")
        self._numbers = count()
        self._slots: dict[tuple[object, ...], list[tuple[TensorSlot, Path]]] = {}
        self._lent: dict[TensorSlot, Path | None] = {}
        for record in rank.records() if rank is not None else ():
            for slot in record.slots():
                if isinstance(slot, TensorSlot) and slot.data_name is not None and rank is not None:
                    self._add(slot, rank.tensor_path(slot.data_name))

    def provide(self, path: Path) -> Path:
        """A file that was found, when somebody is about to read it."""
        return path

    def _add(self, slot: TensorSlot, path: Path) -> None:
        if slot.sketch is not None:
            self._slots.setdefault(_extremes(slot), []).append((slot, path))

    def find(self, wanted: TensorSlot) -> Path | None:
        """A file with the same numbers, in the shape and dtype of the tensor that is wanted."""
        if wanted.sketch is None or wanted.shape is None:
            return None
        wanted = replace(wanted, slot="")
        if wanted not in self._lent:
            found = (self._lend(*both, wanted) for both in self._slots.get(_extremes(wanted), ()))
            self._lent[wanted] = next((path for path in found if path is not None), None)
        return self._lent[wanted]

    def _lend(self, slot: TensorSlot, path: Path, wanted: TensorSlot) -> Path | None:
        if not _has_same_numbers(slot, wanted):
            return None
        is_in_order = not sketched_distance(slot, wanted)
        if is_in_order and slot.shape == wanted.shape and short_dtype(slot.dtype) == short_dtype(wanted.dtype):
            return path
        try:
            content = open_tensor(self.provide(path), slot.dtype)
        except DumpError:
            return None
        turned = content if is_in_order else self._turn(content, wanted)
        return None if turned is None else self._write(turned.reshape(wanted.shape or ()), wanted.dtype)

    def _turn(self, content: Array, wanted: TensorSlot) -> Array | None:
        """With its dimensions in the order in which it has the wanted sketch."""
        for turned in _iter_turned(content, wanted):
            sketch = sketch_array(turned)
            if sketch is not None and not sketched_distance(replace(wanted, sketch=tuple(sketch)), wanted):
                return turned
        return None

    def _write(self, content: Array, dtype: str | None) -> Path | None:
        short = short_dtype(dtype)
        if content.dtype.name != short:
            if content.dtype.kind not in "iu" or not short.startswith(("int", "uint")):
                return None  # the same numbers in another precision are others
            content = content.astype(short)
        path = self._next_path()
        np.save(path, content)
        return path

    def _next_path(self) -> Path:
        return Path(self._folder.name) / f"{next(self._numbers)}.npy"


class Drawer(Lender):
    """Numbers that have the extremes, the mean and the size of those that were not kept; the same for both runs."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[Path, TensorSlot] = {}

    def find(self, wanted: TensorSlot) -> Path | None:
        found = super().find(wanted)
        if found is None and can_draw(wanted):
            found = self._next_path()
            self._waiting[found] = wanted
            self._add(wanted, found)
            self._lent[replace(wanted, slot="")] = found
        return found

    def provide(self, path: Path) -> Path:
        """Drawn when it is needed: by then it is known that the step fits into the memory."""
        if path in self._waiting:
            np.save(path, draw(self._waiting.pop(path)))
        return path

    def _turn(self, content: Array, wanted: TensorSlot) -> Array | None:
        """Drawn numbers have not the recorded sketch: what is no copy is turned."""
        return next((turned for turned in _iter_turned(content, wanted) if turned.strides != content.strides), None)


def _extremes(slot: TensorSlot) -> tuple[object, ...]:
    return slot.element_count, slot.max, slot.min


def _has_same_numbers(slot: TensorSlot, other: TensorSlot) -> bool:
    """In whatever order, as far as statistics tell."""
    if not sketched_distance(slot, other):
        return True
    if slot.norm is None or other.norm is None or slot.mean is None or other.mean is None:
        return False
    size = max(abs(slot.norm), abs(other.norm))
    root = math.sqrt(slot.element_count or 1)
    is_near = abs(slot.norm - other.norm) <= _RESOLUTION * size
    is_near = is_near and abs(slot.mean - other.mean) * root <= _RESOLUTION * size
    return is_near and sorted(slot.shape or ()) == sorted(other.shape or ())


def _iter_turned(content: Array, wanted: TensorSlot) -> Iterator[Array]:
    if 1 < content.ndim <= _MAX_TURNED_DIMENSIONS:
        turned = (content.transpose(order) for order in permutations(range(content.ndim)))
        yield from (one for one in turned if one.shape == wanted.shape)


@dataclass(frozen=True)
class BorrowingRank(RankDump):
    """What one process recorded in one step, with tensors that are not its own."""

    source: Lender = field(kw_only=True)
    _paths: dict[str, Path] = field(default_factory=dict, kw_only=True)

    @property
    def header(self) -> Mapping[str, Any]:
        return {**super().header, "task": "tensor", LENT: True}

    def records(self) -> Iterator[Record]:
        for record in super().records():
            yield self._complete(record)

    def record(self, name: str) -> Record:
        return self._complete(super().record(name))

    def tensor_path(self, data_name: str) -> Path:
        path = self._paths.get(data_name)
        return super().tensor_path(data_name) if path is None else self.source.provide(path)

    def _complete(self, record: Record) -> Record:
        fields = {name: self._borrow(tree) if name in _BORROWING else tree for name, tree in record.fields.items()}
        return Record(record.name, fields)

    def _borrow(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self._borrow(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if not is_tensor(tree):
            return {key: self._borrow(item) for key, item in tree.items()}
        if tree.get("source") is not None:
            return tree
        slot = next(iter_slots(tree, ""), None)
        path = self.source.find(slot) if isinstance(slot, TensorSlot) else None
        if path is None:
            return tree
        self._paths[path.name] = path
        return {**tree, "data_name": path.name, LENT: True}
