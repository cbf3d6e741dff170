"""Values that one run computes as one and the other as several: the rows of each expert, the halves of a batch, one
step of a recursion after the other.

A number with many digits is known by them. A value of one run is in the other, scattered, if all its numbers are there,
and those that lie in one value lie there in the same order: a batch that was turned round is not the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import ceil, log
from typing import NamedTuple

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import TOLERANCE, permutations, settle
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue

_MAX_NUMBERS = 1 << 26
"""In a step that is larger, parts are not looked for: the index takes 24 bytes for each number."""
_MAX_LOOKED_AT = 512
_MAX_SOURCES = 64
_UNLIKELY = 1e-6
"""So unlikely it must be that all numbers of a value are there by chance …"""
_MAX_CHANCE = 0.2
"""… and so unlikely that one is."""
_AROUND = 512
"""How likely that is, is counted in a range so many times as wide as two equal numbers may be apart."""
_MAX_HITS = 16
_FEW = 4
"""Most values are told by so many of their numbers."""
_LEAST_WHOLE = 8
"""So many whole numbers, half of them different, are no chance."""
_MAX_OWNERS = 4
_MAX_SCANS = 4
"""So many values are looked for one by one; for more it pays to sort all numbers of a step."""
_STRAY = 3.0
"""So many times as often as is likely may numbers be near one another by chance."""


class Scattered:
    """Both steps, and which values of one are in the other in parts."""

    _keeps_order = True

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        self.steps = counterparts.steps
        self._found: dict[tuple[str, int], list[list[TrueValue]]] = {}
        self._indexes = {side: _NumberIndex(step) for side, step in self.steps.items()}
        self._absent: dict[str, set[int]] = {side: set() for side in self.steps}
        """Values some numbers of which are nowhere in the other run, in whatever order."""
        self._sizes = {
            side: {one.array.size for one in step.values if not one.is_leaf and step.leads_to_loss(one)}
            for side, step in self.steps.items()
        }

    def of(self, side: str, value: TrueValue) -> list[TrueValue]:
        """The values of the other run that have its content, that hold all its numbers, or whose numbers it holds.
        `side` is whose value it is."""
        whole = self._counterparts.of(side, value)
        if whole or not value.is_floating or np.isnan(value.array).any():
            return whole or self._find_longer(side, value)
        sources = [one for alike in self._sources(side, value) for one in alike]
        return sources or self._parts[side].get(value.number, [])

    def _find_longer(self, side: str, value: TrueValue) -> list[TrueValue]:
        """Of whole numbers, as the words of half a batch: those that hold them one behind the other."""
        if value.array.dtype.kind not in "iu" or not _LEAST_WHOLE <= value.array.size <= _MAX_LOOKED_AT:
            return []
        numbers = value.array.reshape(-1)
        if len(np.unique(numbers)) < _LEAST_WHOLE // 2:
            return []
        others = (one for one in self.steps[other_side(side)].values if one.array.dtype.kind in "iu")
        return [one for one in others if _has_run(one.array.reshape(-1), numbers)]

    def _sources(self, side: str, value: TrueValue) -> list[list[TrueValue]]:
        """The values that together hold its numbers, each with those that hold the same of them."""
        known = self._found.get((side, value.number))
        if known is None:
            other = other_side(side)
            numbers = self._find_numbers(side, value)
            values = self.steps[other].values
            known = self._found[side, value.number] = [[values[number] for number in alike] for alike in numbers]
        return known

    def _find_numbers(self, side: str, value: TrueValue) -> list[list[int]]:
        """As near as truths are, and then as near as what was rounded: there many numbers are near by chance."""
        index, content = self._indexes[other_side(side)], self.content(side, value)
        is_whole = is_absent = content is value.array
        if is_whole and value.number in self._absent[side]:
            return []
        for tolerance in sorted({TOLERANCE, self._counterparts.tolerance}):
            found = index.find_sources(content, tolerance, self._keeps_order)
            if found:
                return found
            is_absent = is_absent and found is None
        if is_absent:
            self._absent[side].add(value.number)
        return []

    def has_size(self, side: str, value: TrueValue) -> bool:
        """Does the other run compute values of this size, on the way to its loss?"""
        return value.array.size in self._sizes[other_side(side)]

    def content(self, side: str, value: TrueValue) -> Array:
        """What is looked for in the other run."""
        return value.array

    @cached_property
    def _parts(self) -> dict[str, dict[int, list[TrueValue]]]:
        """The values of the other run that lie in one value of this, each with all that is made in the same way."""
        found: dict[str, dict[int, list[TrueValue]]] = {side: {} for side in self.steps}
        for side, step in self.steps.items():
            alike: dict[tuple[str, str | None, str], list[TrueValue]] = {}
            for value in step.values:
                maker = step.maker(value)
                if maker is not None and value.is_floating and telling_numbers(value.array).size:
                    alike.setdefault((word_of(maker), maker.module_path, value.slot), []).append(value)
            for values in alike.values():
                lone = [value for value in values if not self._counterparts.exists(side, value)]
                sources = [self._sources(side, value) for value in lone]
                if all(sources):
                    for value, wholes in zip(lone, sources, strict=True):
                        for whole in wholes[0] if len(wholes) == 1 else ():
                            found[other_side(side)].setdefault(whole.number, []).append(value)
        return found

    def exists(self, side: str, value: TrueValue) -> bool:
        """Is it there, and not only put together of what is there? The order of parts is not known, but where numbers
        only get another shape. What says nothing, a mask, is not asked for, but for what it is made of."""
        step = self.steps[side]
        while True:
            maker = step.maker(value)
            if self._counterparts.exists(side, value) or maker is None:
                return self._is_known(side, value)
            given = [step.values[number] for number in maker.inputs.values() if number != value.number]
            floating = [one for one in given if one.is_floating]
            if self._says_nothing(side, value):
                return all(self._is_known(side, one) for one in floating)
            if not self.of(side, value):
                return False
            if not step.only_moves(maker):
                return True
            flat = value.array.reshape(-1)
            shaped = next((one for one in floating if np.array_equal(one.array.reshape(-1), flat)), None)
            if shaped is None:
                return False
            value = shaped

    def _is_known(self, side: str, value: TrueValue) -> bool:
        return self._says_nothing(side, value) or bool(self.of(side, value))

    def kind_of(self, side: str, call: TrueCall) -> str:
        """Does it compute numbers, only move them or say where to, or make what says nothing: zeros, a mask?"""
        results = [self.steps[side].values[number] for number in call.outputs.values()]
        if call.is_undefined or all(self._says_nothing(side, value) for value in results):
            return "plain"
        is_place = not any(value.is_floating for value in results)
        return "moving" if is_place or self.steps[side].only_moves(call) else "computing"

    def _says_nothing(self, side: str, value: TrueValue) -> bool:
        return self._counterparts.is_plain(side, value) and not (
            value.is_floating and telling_numbers(value.array).size
        )


def _has_run(longer: Array, numbers: Array) -> bool:
    if longer.size <= numbers.size:
        return False
    starts = np.flatnonzero(longer[: longer.size - numbers.size + 1] == numbers[0])
    return any(np.array_equal(longer[start : start + numbers.size], numbers) for start in starts)


class TrustedMoves(Scattered):
    """The same, as if all numbers that are only put elsewhere were put where they belong: what is left is computed."""

    _keeps_order = False

    def __init__(self, scattered: Scattered) -> None:
        super().__init__(scattered._counterparts)
        self._indexes, self._absent = scattered._indexes, scattered._absent

    def of(self, side: str, value: TrueValue) -> list[TrueValue]:
        found = super().of(side, value)
        return found or [one for given in self._moved(side, value) for one in self.of(side, given)]

    def exists(self, side: str, value: TrueValue) -> bool:
        if not value.is_floating or super().exists(side, value):
            return True
        moved = self._moved(side, value)
        return bool(moved) and all(self.exists(side, one) for one in moved)

    def _moved(self, side: str, value: TrueValue) -> list[TrueValue]:
        """What its numbers are taken from."""
        step = self.steps[side]
        maker = step.maker(value) if value.is_floating else None
        if maker is None or not step.only_moves(maker):
            return []
        given = (step.values[number] for number in maker.inputs.values())
        return [one for one in given if one.is_floating and one.number != value.number]


class _NumberIndex:
    """All telling numbers of one step, with the values that hold them; sorted when somebody asks for one."""

    def __init__(self, step: TrueStep) -> None:
        self._step = step
        self._scan_count = 0

    @cached_property
    def _sorted(self) -> tuple[Array, Array, Array]:
        """The numbers, the values that hold them, and their places there."""
        floating = [value for value in self._step.values if value.array.dtype.kind == "f"]
        if sum(value.array.size for value in floating) > _MAX_NUMBERS:
            floating = []
        numbers, owners, places = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for value in floating:
            flat = settle(value.array).reshape(-1)
            place = np.flatnonzero(_is_telling(flat))
            numbers.append(flat[place].astype(np.float64))
            owners.append(np.full(place.size, value.number))
            places.append(place)
        order = np.argsort(joined := np.concatenate(numbers), kind="stable")
        return joined[order], np.concatenate(owners)[order], np.concatenate(places)[order]

    def find_sources(self, array: Array, tolerance: float, keeps_order: bool) -> list[list[int]] | None:
        """The values that hold the numbers of this one, in its order if that matters, each with those that hold the
        same; None if some are not there."""
        if array.dtype.kind != "f":
            return None
        whole = wanted = telling_numbers(array)
        if wanted.size > _MAX_LOOKED_AT:
            wanted = wanted[np.linspace(0, wanted.size - 1, _MAX_LOOKED_AT).astype(int)]
        room = tolerance * float(np.abs(wanted).max(initial=0.0))
        if not wanted.size or self._is_nowhere(float(wanted[0]), room):
            return None
        if self._lacks_any(wanted[:_FEW], room) or self._lacks_any(wanted, room):
            return None
        low, high = self._find_near(wanted, room)
        chances = self._find_chances(np.unique(wanted), room)
        if chances.mean() > _MAX_CHANCE or np.log(np.maximum(chances, 1 / _AROUND)).sum() > log(_UNLIKELY):
            return []
        hits = [self._hits(int(first), int(last)) for first, last in zip(low, high, strict=True)]
        if not keeps_order:
            return _cover(hits, None)
        strays = ceil(_STRAY * float(chances.mean()) * wanted.size)
        return _cover(hits, _Order(strays, _is_repeated(wanted, whole, room), self._step))

    def _is_nowhere(self, number: float, room: float) -> bool:
        """Is this one not in the step? Most values are told by their first number."""
        self._scan_count += 1
        if self._scan_count > _MAX_SCANS:
            return False
        arrays = (value.array for value in self._step.values if value.array.dtype.kind == "f")
        return not any(((one >= number - room) & (one <= number + room)).any() for one in arrays)

    def _lacks_any(self, wanted: Array, room: float) -> bool:
        low, high = self._find_near(wanted, room)
        return bool(np.any(low == high))

    def _find_near(self, wanted: Array, room: float) -> tuple[Array, Array]:
        numbers, *_ = self._sorted
        return numbers.searchsorted(wanted - room), numbers.searchsorted(wanted + room, "right")

    def _find_chances(self, wanted: Array, room: float) -> Array:
        """How likely some other number is as near to each of these: by how many are further around it."""
        near, around = self._find_near(wanted, room), self._find_near(wanted, _AROUND * room)
        others = (around[1] - around[0]) - (near[1] - near[0])
        return np.asarray(np.minimum(others / _AROUND, 1.0))

    def _hits(self, first: int, last: int) -> dict[int, list[int]]:
        """The places of numbers in the order of their size, by the values that hold them."""
        _, owners, places = self._sorted
        found: dict[int, list[int]] = {}
        for at in range(first, min(last, first + _MAX_HITS)):
            found.setdefault(int(owners[at]), []).append(int(places[at]))
        return found


def _is_repeated(wanted: Array, whole: Array, room: float) -> Array:
    """Which of these numbers does the whole have several times, as where one word stands in two rows?"""
    ordered = np.sort(whole)
    return np.asarray(np.searchsorted(ordered, wanted + room, "right") - np.searchsorted(ordered, wanted - room) > 1)


class _Order(NamedTuple):
    """In which order the numbers of a value lie in another one."""

    strays: int
    """So many numbers of other values may be near one of its own."""
    is_repeated: Array
    """Which of them lie in several places, so that one of these is another one's."""
    step: TrueStep
    """Whose values these are."""

    def keep(self, claimed: list[int], hits: list[dict[int, list[int]]], owner: int) -> list[int] | None:
        """Those that lie there in this order; None where too many do not, also if the axes of that value are put in
        another order, which gives it another shape."""
        kept = [claimed[one] for one in find_rising([hits[one][owner] for one in claimed])]
        lost = [one for one in set(claimed).difference(kept) if not self.is_repeated[one]]
        if len(lost) <= self.strays:
            return kept
        single = [one for one in claimed if not self.is_repeated[one] and len(hits[one][owner]) == 1]
        places = np.array([hits[one][owner][0] for one in single], dtype=np.int64)
        array = self.step.values[owner].array
        axes_of_places = np.unravel_index(places, array.shape)
        for axes in permutations(array) if len(single) >= _LEAST_WHOLE else ():
            shape = tuple(array.shape[axis] for axis in axes)
            turned = np.ravel_multi_index(tuple(axes_of_places[axis] for axis in axes), shape)
            is_other = [size for size in shape if size > 1] != [size for size in array.shape if size > 1]
            if is_other and np.count_nonzero(np.diff(turned) < 0) <= self.strays:
                return claimed
        return None


def _cover(hits: list[dict[int, list[int]]], order: _Order | None) -> list[list[int]]:
    """Few values that hold all, each its numbers in this order, with others that hold the same; none if there are no
    such. `order`: None if it does not matter."""
    left, sources = list(range(len(hits))), list[list[int]]()
    while left:
        used = {number for alike in sources for number in alike}
        counts = Counter(number for one in left for number in hits[one] if number not in used)
        if not counts or len(sources) == _MAX_SOURCES:
            return []
        owners = (owner for owner, _ in counts.most_common(_MAX_OWNERS))
        claims = (_claim(hits, left, owner, order) for owner in owners)
        found = next((one for one in claims if one is not None), None)
        if found is None:
            return []
        alike = [number for number, count in counts.items() if count == len(found.claimed)]
        sources.append([number for number in alike if all(number in hits[one] for one in found.claimed)])
        left = sorted({*left} - set(found.kept))
    return sources


class _Claim(NamedTuple):
    claimed: list[int]
    """The numbers that one value holds."""
    kept: list[int]
    """Those of them that lie there in this order."""


def _claim(hits: list[dict[int, list[int]]], left: list[int], owner: int, order: _Order | None) -> _Claim | None:
    """None where too many of them lie in another order."""
    claimed = [one for one in left if owner in hits[one]]
    kept = claimed if order is None else order.keep(claimed, hits, owner)
    return None if kept is None else _Claim(claimed, kept)


def find_rising(places: Sequence[Sequence[int]]) -> list[int]:
    """The longest choice of items whose places rise, where each item has several places to choose from."""
    ends: list[int] = []
    """The lowest place at which a rising choice of each length ends …"""
    items: list[int] = []
    """… and whose place that is."""
    before: dict[tuple[int, int], tuple[int, int] | None] = {}
    for item, choices in enumerate(places):
        for place in sorted(choices, reverse=True):
            length = bisect_left(ends, place)
            before[item, place] = (items[length - 1], ends[length - 1]) if length else None
            ends[length : length + 1], items[length : length + 1] = [place], [item]
    at = (items[-1], ends[-1]) if items else None
    found = []
    while at is not None:
        found.append(at[0])
        at = before[at]
    return found[::-1]


def telling_numbers(array: Array) -> Array:
    """Those with many digits: no zeros, ones, halves, no masks."""
    flat = settle(array).reshape(-1)
    if np.iscomplexobj(flat):
        flat = np.concatenate([flat.real, flat.imag])
    return np.asarray(flat[_is_telling(flat)], dtype=np.float64)


def _is_telling(flat: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = flat * 64
        return np.asarray(np.isfinite(flat) & (scaled != np.round(scaled)))
