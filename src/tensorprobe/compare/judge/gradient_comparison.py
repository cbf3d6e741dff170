"""The gradients of the parameters of two runs, by their statistics.

Names, shapes and the order of calls are another program's. So gradients of the same size and extremes are one, and two
parameters of the same content are to have the same gradient. What only one run has recorded, or has in other pieces,
says nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.compare.judge.own_record import is_measured, list_own, read_number
from tensorprobe.compare.measure.statistic_measure import sketched_distance, with_statistics_of
from tensorprobe.errors import DumpError
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.backward_pass import read_passes
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run
from tensorprobe.store.sketch import estimate_distance
from tensorprobe.store.slot import TensorSlot, iter_slots
from tensorprobe.store.tensor_file import open_tensor

_LEAST_SIZE = 1e-2
"""Of all gradients together: what is smaller may be noise, where terms cancel."""
_LEAST_SHARE = 0.25
"""Of the gradients that either run has: so many are to be in the other."""


@dataclass(frozen=True)
class SameGradients:
    """Two runs have the same gradients, as far as these are recorded."""

    error: float
    count: int
    unknown: int
    """Gradients of the reference that are not in the candidate, or not in one piece."""


@dataclass(frozen=True, eq=False)
class _Gradient:
    """What comes back to one parameter, from each call that takes it."""

    leaf: TensorSlot | None
    shares: tuple[TensorSlot, ...]

    @property
    def size(self) -> float:
        """At most, where there are several."""
        return math.hypot(*(read_number(share.norm) for share in self.shares))

    @property
    def norm(self) -> float | None:
        """None of a sum of several."""
        return read_number(self.shares[0].norm) if len(self.shares) == 1 else None


def compare_gradients(reference: Run, candidate: Run, tolerance: float) -> GradientComparison:
    """`tolerance`: how far apart two of the same may be, relative to their size."""
    found = GradientComparison(_find_gradients(reference), _find_gradients(candidate), tolerance)
    returned = _list_returned(reference) | _list_returned(candidate)
    found.note_missing(_find_untrained(reference, returned), _find_untrained(candidate, returned))
    return found


def find_gradient_sizes(run: Run) -> dict[str, float]:
    """Of the parameters whose names are known, at most."""
    found = ((one.leaf, one.size) for one in _find_gradients(run))
    return {leaf.parameter: size for leaf, size in found if leaf is not None and leaf.parameter is not None}


def _find_gradients(run: Run) -> list[_Gradient]:
    whole = [slot for call in run.calls if call.kind == "parameters_grad" for slot in call.tensors]
    if whole:
        return [_Gradient(None, (slot,)) for slot in whole if is_measured(slot)]
    try:
        left = list(_iter_left(run))
    except DumpError:  # a file is not there, or damaged: what came back to each call is recorded, too
        left = []
    if left and all(is_measured(slot) for one in left for slot in one.shares):
        return left
    leaves: dict[object, TensorSlot] = {}
    shares: dict[object, list[TensorSlot]] = {}
    for leaf, slot in _iter_shares(run):
        leaves.setdefault(_key(leaf), leaf)
        shares.setdefault(_key(leaf), []).append(slot)
    return [_Gradient(leaf, tuple(shares[key])) for key, leaf in leaves.items() if all(map(is_measured, shares[key]))]


def _iter_left(run: Run) -> Iterator[_Gradient]:
    """What the last pass has left for each leaf, where that was kept."""
    passes = [one for one in read_passes(run.rank.run) if one.accumulates]
    last = {one.leaf.tensor: one for asked in passes for one in asked.all_leaves}
    taken = (slot for call in list_own(run, FORWARD) for slot in call.tensors if slot.is_input and slot.parameter)
    leaves = {slot.parameter: slot for slot in taken}
    for one in last.values():
        for slot in iter_slots(dict(one.after.fields), "") if one.after is not None else ():
            if isinstance(slot, TensorSlot) and slot.data_name is not None:
                content = open_tensor(run.rank.tensor_path(slot.data_name), slot.dtype)
                yield _Gradient(leaves.get(one.leaf.parameter), (with_statistics_of(slot, content),))
            elif isinstance(slot, TensorSlot):
                yield _Gradient(leaves.get(one.leaf.parameter), (slot,))


def _key(leaf: TensorSlot) -> object:
    return leaf.parameter or (leaf.shape, leaf.max, leaf.min, leaf.norm, leaf.sketch)


_Place = tuple[str, str, str]
"""A function, and a place of a result of its backward."""


def _list_returned(run: Run) -> set[_Place]:
    return {
        (call.prefix, call.op, slot.slot)
        for call in list_own(run, BACKWARD)
        for slot in call.tensors
        if not slot.is_input
    }


def _find_untrained(run: Run, returned: Collection[_Place]) -> list[TensorSlot]:
    """The parameters to which nothing comes back, although it would be recorded: of other calls of these functions it
    is (`returned`)."""
    takers: dict[object, list[tuple[Call, TensorSlot]]] = {}
    for call in list_own(run, FORWARD):
        for slot in call.tensors:
            if slot.is_input and slot.parameter:
                takers.setdefault(_key(slot), []).append((call, slot))
    return [
        found[0][1]
        for found in takers.values()
        if not any(call.in_direction(BACKWARD) in run.by_name for call, _ in found)
        and all((call.prefix, call.op, _place_of_gradient(slot)) in returned for call, slot in found)
    ]


def _place_of_gradient(slot: TensorSlot) -> str:
    return slot.slot.replace("input", "output", 1) if slot.slot.startswith("input") else slot.slot


def _iter_shares(run: Run) -> Iterator[tuple[TensorSlot, TensorSlot]]:
    """The leaves that are trained, and what comes back to each from each call that takes it."""
    flow = Flow(run)
    own = [slot for direction in (FORWARD, BACKWARD) for call in list_own(run, direction) for slot in call.tensors]
    named = {_extremes(slot): slot for slot in own if slot.is_input and slot.parameter}
    made = {_extremes(slot) for slot in own if not slot.is_input}
    for call in list_own(run, BACKWARD):
        forward = flow.forward_of(call)
        for taken in forward.tensors if forward is not None else ():
            leaf: TensorSlot | None = taken
            if not taken.parameter and named:  # as `x.T`, which is no call
                is_seen = flow.producer(taken) is not None or _extremes(taken) in made
                leaf = None if is_seen else named.get(_extremes(taken))
            elif not taken.parameter and not (taken.requires_grad and flow.producer(taken) is None):
                leaf = None
            if taken.is_input and leaf is not None:
                place = _place_of_gradient(taken)
                yield from ((leaf, slot) for slot in call.tensors if not slot.is_input and slot.slot == place)


def _extremes(slot: TensorSlot) -> object:
    return slot.element_count, slot.max, slot.min


class GradientComparison:
    """Those of one run, held against those of the other."""

    def __init__(self, reference: Sequence[_Gradient], candidate: Sequence[_Gradient], tolerance: float) -> None:
        self._reference, self._candidate = reference, candidate
        self._tolerance = tolerance
        self._least = _LEAST_SIZE * math.hypot(*(one.norm or 0.0 for one in reference))
        self._errors: list[tuple[float, float]] = []
        """Of those that are the same, each with the size that it is relative to."""
        self._differing: list[tuple[_Gradient, _Gradient]] = []
        self._lone, self._left = self._pair_by_leaf(*self._pair_alike())

    def note_missing(self, reference: Sequence[TensorSlot], candidate: Sequence[TensorSlot]) -> None:
        """Parameters to which nothing comes back, although something does in the other run."""
        for one in self._lone:
            leaf = next((leaf for leaf in candidate if is_same_leaf(one.leaf, leaf)), None)
            if leaf is not None:
                self._differing.append((one, _Gradient(leaf, ())))
        for one in self._left:
            leaf = next((leaf for leaf in reference if is_same_leaf(one.leaf, leaf)), None)
            if leaf is not None:
                self._differing.append((_Gradient(leaf, ()), one))

    def agree(self, together: float) -> SameGradients | None:
        """`together`: how far apart all gradients may be, taken as one."""
        same = len(self._errors)
        if (
            self._differing
            or self._has_others_of_same_sizes()
            or not same
            or same < _LEAST_SHARE * min(len(self._reference), len(self._candidate))
        ):
            return None
        distance = math.hypot(*(error * size for error, size in self._errors))
        if distance > together * math.hypot(*(size for _, size in self._errors)):
            return None
        return SameGradients(max(error for error, _ in self._errors), same, len(self._lone))

    def _has_others_of_same_sizes(self) -> bool:
        """Has each run as many gradients of each size that the other has not? Where parameters are joined in one run,
        they have other sizes there: these are of the same parameters, and differ. Of a gradient that is a sum of
        parts, only its parts are known."""
        if any(one.norm is None for one in (*self._lone, *self._left)):
            return False
        sizes = [sorted(one.shares[0].element_count or 0 for one in side) for side in (self._lone, self._left)]
        return bool(sizes[0]) and sizes[0] == sizes[1]

    def find_differing(self) -> tuple[list[TensorSlot], list[TensorSlot]]:
        if not self._differing:
            return _list_shares(self._lone), _list_shares(self._left)
        first, second = list[TensorSlot](), list[TensorSlot]()
        for one, other in self._differing:
            first += self._list_other(one.shares, other.shares)
            second += self._list_other(other.shares, one.shares)
        return first, second

    def _list_other(self, shares: Sequence[TensorSlot], others: Sequence[TensorSlot]) -> list[TensorSlot]:
        return [one for one in shares if not any(self._differ(one, each) <= self._tolerance for each in others)]

    def _pair_alike(self) -> tuple[list[_Gradient], list[_Gradient]]:
        """Those of the same size and extremes; the others of both runs are left."""
        several = [one for one in self._candidate if one.norm is None]
        left, lone = sorted((one for one in self._candidate if one.norm is not None), key=_size), []
        for one in self._reference:
            reach = self._tolerance * max(_size(one), self._least)
            start = bisect_left(left, _size(one) - reach, key=_size)
            end = bisect_right(left, _size(one) + reach, start, key=_size)
            near = [(self._differ(one.shares[0], left[place].shares[0]), place) for place in range(start, end)]
            error, place = min(near, default=(math.inf, 0))
            if one.norm is not None and error <= self._tolerance:
                self._errors.append((error, max(_size(one), self._least)))
                del left[place]
            else:
                lone.append(one)
        return lone, left + several

    def _differ(self, first: TensorSlot, second: TensorSlot) -> float:
        if first.element_count != second.element_count:
            return math.inf
        gaps = [
            abs(read_number(getattr(first, name)) - read_number(getattr(second, name)))
            for name in ("norm", "max", "min")
        ]
        distance = sketched_distance(first, second) if first.shape == second.shape else 0.0
        return max(*gaps, distance) / (max(read_number(first.norm), read_number(second.norm), self._least) or 1.0)

    def _pair_by_leaf(
        self, lone: Sequence[_Gradient], left: Sequence[_Gradient]
    ) -> tuple[list[_Gradient], list[_Gradient]]:
        """With those of parameters that have the same content; what then is left of both."""
        by_leaf: dict[object, list[_Gradient]] = {}
        for other in left:
            by_leaf.setdefault(_look_of_leaf(other.leaf), []).append(other)
        unpaired = []
        for one in lone:
            alike = by_leaf.get(_look_of_leaf(one.leaf), [])
            found = next((other for other in alike if is_same_leaf(one.leaf, other.leaf)), None)
            if found is None:
                unpaired.append(one)
                continue
            alike.remove(found)
            error = self._differ_in_sum(one, found)
            if error <= self._tolerance:
                self._errors.append((error, max(one.size, self._least)))
            else:
                self._differing.append((one, found))
        remaining = {id(other) for alike in by_leaf.values() for other in alike}
        return unpaired, [other for other in left if id(other) in remaining]

    def _differ_in_sum(self, one: _Gradient, other: _Gradient) -> float:
        """Share by share; or all together, as sketches add up as the tensors do."""
        left, errors = list(other.shares), []
        for share in one.shares:
            error, place = min(
                ((self._differ(share, each), place) for place, each in enumerate(left)), default=(math.inf, 0)
            )
            errors.append(error)
            del left[place : place + 1]
        if not left and max(errors) <= self._tolerance:
            return max(errors)
        if len({share.shape for share in (*one.shares, *other.shares)}) > 1:
            return math.inf
        distance = estimate_distance(*(_add_sketches(each.shares) for each in (one, other)))
        return distance / (max(one.size, other.size, self._least) or 1.0)


def _list_shares(gradients: Sequence[_Gradient]) -> list[TensorSlot]:
    return [share for one in gradients for share in one.shares]


def _add_sketches(shares: Sequence[TensorSlot]) -> list[float]:
    return [sum(numbers) for numbers in zip(*(share.sketch or () for share in shares), strict=False)]


def _size(gradient: _Gradient) -> float:
    return gradient.norm or 0.0


def _look_of_leaf(leaf: TensorSlot | None) -> object:
    """What those have in common that may be the same."""
    return None if leaf is None else (leaf.shape, leaf.max, leaf.min)


def is_same_leaf(first: TensorSlot | None, second: TensorSlot | None) -> bool:
    """Not where it is a constant, as others are, too."""
    if first is None or second is None or first.max == first.min:
        return False
    return _look_of_leaf(first) == _look_of_leaf(second) and not sketched_distance(first, second)
