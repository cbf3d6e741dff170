"""Runs that were recorded with task `statistics`, with numbers to start from.

Their record says which calls were made, of which tensors; only the numbers are missing. Tensors of both runs that have
the same statistics are the same. If the other run has files, it lends them. If neither has, numbers are drawn: two
programs that mean the same compute the same of any numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tensorprobe.compare.measure.statistic_measure import sketched_distance
from tensorprobe.compare.truth.drawing import can_draw, draw
from tensorprobe.compare.truth.shared_leaf import (
    JointLeaf,
    axes_of,
    count_leaves,
    extremes,
    has_same_numbers,
    is_constant,
    lies_alike,
    list_extremes,
    share_leaves,
    turn,
)
from tensorprobe.errors import DumpError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.run.leaf import LENT, is_tensor
from tensorprobe.run.step import Run
from tensorprobe.store.reader import RankDump, Record
from tensorprobe.store.sketch import sketch_array
from tensorprobe.store.slot import TensorSlot, iter_slots
from tensorprobe.store.tensor_file import open_tensor
from tensorprobe.store.tensor_layout import numpy_dtype

Array = np.ndarray[Any, Any]
_BORROWING = ("input_args", "input_kwargs", "parameters", "buffers", "calls")
"""The fields of a forward record in which leaves are."""
_MAX_TURNED_DIMENSIONS = 4
_MOST_DRAWN = 1 << 28
"""Elements: to execute a larger step again takes minutes, which nobody expects of a comparison of statistics."""


def lend_leaves(reference: Run, candidate: Run, *, draws_any: bool = True) -> tuple[Run, Run]:
    """Both runs; what was recorded with statistics only, with tensors of the other run, or with drawn ones.
    `draws_any`: however long that takes."""
    tasks = [run.rank.header.get("task") for run in (reference, candidate)]
    if not set(tasks) <= {"statistics", "tensor"} or "statistics" not in tasks:
        return reference, candidate
    shared = share_leaves(reference, candidate)
    joints = () if shared is None else shared.joints
    if tasks == ["statistics", "tensor"]:
        return _lend(Lender(_iter_files(candidate.rank), joints), reference), candidate
    if tasks == ["tensor", "statistics"]:
        return reference, _lend(Lender(_iter_files(reference.rank), joints), candidate)
    if shared is None or (not draws_any and max(map(count_leaves, (reference, candidate))) > _MOST_DRAWN):
        return reference, candidate
    drawer = Drawer(joints=joints)
    drawer.computed = shared.computed
    return _lend(drawer, reference), _lend(drawer, candidate)


def find_borrowers(reference: Run, candidate: Run) -> tuple[str, ...]:
    """The sides that start from tensors that are not their own."""
    sides = (("reference", reference), ("candidate", candidate))
    return tuple(side for side, run in sides if isinstance(run.rank, BorrowingRank))


def find_wanted(run: Run) -> Set[object]:
    """The contents that only the other run can compute."""
    return run.rank.source.computed if isinstance(run.rank, BorrowingRank) else frozenset()


def _lend(source: Lender, borrower: Run) -> Run:
    fields = {name: getattr(borrower.rank, name) for name in RankDump.__dataclass_fields__}
    return replace(borrower, rank=BorrowingRank(**fields, source=source))


class Lender:
    """The tensors of a dump, found by what another one says of them."""

    computed: Set[object] = frozenset()
    """The contents that are no numbers to draw: the other run computes them."""

    def __init__(self, slots: Iterable[tuple[TensorSlot, Path]] = (), joints: Iterable[JointLeaf] = ()) -> None:
        self._folder = TemporaryDirectory(prefix="tensorprobe-")
        self._numbers = count()
        self._slots: dict[tuple[object, ...], list[tuple[TensorSlot, Path]]] = {}
        self._lent: dict[TensorSlot, Path | None] = {}
        self._joints = tuple(joints)
        self._waiting: dict[Path, Callable[[], Array]] = {}
        for slot, path in slots:
            self._add(slot, path)

    def find(self, wanted: TensorSlot) -> Path | None:
        """A file with the same numbers, in the shape and dtype of the tensor that is wanted."""
        if wanted.sketch is None or wanted.shape is None:
            return None
        wanted = replace(wanted, slot="")
        if wanted not in self._lent:
            known = (both for key in list_extremes(wanted) for both in self._slots.get(key, ()))
            found = (self._lend(*both, wanted) for both in known)
            path = next((path for path in found if path is not None), None)
            self._lent[wanted] = path or self._join(wanted) or self._cut(wanted) or self._fill(wanted)
        return self._lent[wanted]

    def _fill(self, wanted: TensorSlot) -> Path | None:
        """Of one number everywhere, as the state that a recurrent layer begins with."""
        return self._expect(lambda: draw(wanted)) if is_constant(wanted) and can_draw(wanted) else None

    def provide(self, path: Path) -> Path:
        """A file that was found, for somebody who is about to read it: by then it is known that the step fits into the
        memory."""
        if path in self._waiting:
            np.save(path, self._waiting.pop(path)())
        return path

    def _add(self, slot: TensorSlot, path: Path) -> None:
        for key in list_extremes(slot) if slot.sketch is not None else ():
            self._slots.setdefault(key, []).append((slot, path))

    def _expect(self, make: Callable[[], Array]) -> Path:
        path = Path(self._folder.name) / f"{next(self._numbers)}.npy"
        self._waiting[path] = make
        return path

    def _read(self, path: Path, dtype: str | None) -> Array:
        return open_tensor(self.provide(path), dtype)

    def _lend(self, slot: TensorSlot, path: Path, wanted: TensorSlot) -> Path | None:
        if not has_same_numbers(slot, wanted):
            return None
        is_in_order = lies_alike(slot, wanted)
        is_same_dtype = short_dtype(slot.dtype) == short_dtype(wanted.dtype)
        if is_in_order and slot.shape == wanted.shape and is_same_dtype:
            return path
        try:
            content = self._read(path, slot.dtype)
        except DumpError:
            return None
        turned = content if is_in_order else self._turn(content, wanted)
        if turned is None:
            return None
        shaped, dtype = turned.reshape(wanted.shape or ()), numpy_dtype(short_dtype(wanted.dtype))
        return self._expect(lambda: shaped if is_same_dtype else shaped.astype(dtype))

    def _turn(self, content: Array, wanted: TensorSlot) -> Array | None:
        """With its dimensions in the order in which it has the wanted sketch."""
        for turned in _iter_turned(content, wanted):
            sketch = sketch_array(np.ascontiguousarray(turned))
            if sketch is not None and lies_alike(replace(wanted, sketch=tuple(sketch)), wanted):
                return turned
        return None

    def _join(self, wanted: TensorSlot) -> Path | None:
        """Of the parts that the other run has."""
        joint = next((one for one in self._joints if _is_one(one.whole, wanted)), None)
        paths = [] if joint is None else [self.find(part) for part in joint.parts]
        if joint is None or None in paths:
            return None
        both = [(path, part.dtype) for path, part in zip(paths, joint.parts, strict=True) if path is not None]
        rows = ((turn(wanted) if joint.is_turned else wanted).shape or ())[1:]

        def join() -> Array:
            whole: Array = np.concatenate([self._read(*one).reshape(-1, *rows) for one in both])
            return np.ascontiguousarray(whole.swapaxes(-1, -2)) if joint.is_turned else whole

        return self._expect(join)

    def _cut(self, wanted: TensorSlot) -> Path | None:
        """Out of what the other run has in one piece."""
        for joint in self._joints:
            place = next((place for place, part in enumerate(joint.parts) if _is_one(part, wanted)), None)
            wholes = (path for slot, path in self._slots.get(extremes(joint.whole), ()) if _is_one(slot, joint.whole))
            path = None if place is None else next(wholes, None)
            if path is not None:
                start = sum(part.element_count or 0 for part in joint.parts[:place])
                read = self._read_turned if joint.is_turned else self._read
                return self._expect(partial(_cut_part, partial(read, path, wanted.dtype), wanted, start))
        return None

    def _read_turned(self, path: Path, dtype: str | None) -> Array:
        return self._read(path, dtype).swapaxes(-1, -2)


def _cut_part(read: Callable[[], Array], wanted: TensorSlot, start: int) -> Array:
    content = read().reshape(-1)[start : start + (wanted.element_count or 0)]
    return content.reshape(wanted.shape or ())


def _is_one(slot: TensorSlot, other: TensorSlot) -> bool:
    """The same numbers in the same order."""
    is_alike = slot.shape == other.shape and short_dtype(slot.dtype) == short_dtype(other.dtype)
    return is_alike and extremes(slot) == extremes(other) and not sketched_distance(slot, other)


class Drawer(Lender):
    """Numbers that have the extremes, the mean and the size of those that were not kept; the same for both runs."""

    def find(self, wanted: TensorSlot) -> Path | None:
        found = super().find(wanted)
        if found is None and can_draw(wanted):
            found = self._expect(lambda: draw(wanted))
            self._add(wanted, found)
            self._lent[replace(wanted, slot="")] = found
        return found

    def _turn(self, content: Array, wanted: TensorSlot) -> Array | None:
        """Drawn numbers have not the recorded sketch: what is no copy is turned."""
        found = (one for one in _iter_turned(content, wanted) if one.strides != content.squeeze().strides)
        return next(found, None)


def _iter_files(rank: RankDump) -> Iterator[tuple[TensorSlot, Path]]:
    for record in rank.records():
        for slot in record.slots():
            if isinstance(slot, TensorSlot) and slot.data_name is not None:
                yield slot, rank.tensor_path(slot.data_name)


def _iter_turned(content: Array, wanted: TensorSlot) -> Iterator[Array]:
    content = content.squeeze()
    if 1 < content.ndim <= _MAX_TURNED_DIMENSIONS:
        turned = (content.transpose(order) for order in permutations(range(content.ndim)))
        yield from (one for one in turned if one.shape == axes_of(wanted.shape))


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
