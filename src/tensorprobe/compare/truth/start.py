"""Leaves that two runs do not share: what they began with is not the same.

Whether that is all that differs is tried out: the candidate is executed again with the reference's numbers in their
place. At a later step this is as it should be, as far as rounding goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue


@dataclass(frozen=True)
class Origin:
    """Where the numbers of a parameter of the candidate, or of a view of one, are in the reference."""

    parameter: str
    """What it is called there."""
    take: Array
    """Places in that parameter of the reference, flat …"""
    put: Array
    """… and in that of the candidate."""


Origins = Mapping[str, Sequence[Origin]]
"""By the names of the candidate's parameters."""


@dataclass(frozen=True)
class LeafPair:
    """One leaf of each run, in the same place, with other numbers."""

    reference: TrueValue
    candidate: TrueValue
    content: Array
    """The reference's numbers, as the candidate holds them."""
    sources: tuple[TrueValue, ...] = ()
    """All leaves of the reference that they are from."""
    is_certain: bool = True
    """By their name, or by the calls that take them; not only by their size, which is worth a trial."""

    @property
    def name(self) -> str:
        return self.candidate.parameter or self.reference.parameter or self.candidate.slot

    @property
    def difference(self) -> Array:
        return np.asarray(self.content - self.candidate.array)

    @property
    def is_any_different(self) -> bool:
        return not np.array_equal(self.content, self.candidate.array, equal_nan=True)

    @property
    def error(self) -> float | None:
        """Relative to the reference; None for what is no number, or infinite."""
        if not self.reference.is_floating or not self.candidate.is_floating:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            scale, size = float(np.linalg.norm(self.content)), float(np.linalg.norm(self.difference))
        return size / scale if scale and np.isfinite([size, scale]).all() else None


def pair_leaves(reference: TrueValue, candidate: TrueValue) -> LeafPair:
    """Two of one size."""
    return LeafPair(reference, candidate, reference.array.reshape(candidate.array.shape), (reference,))


def pair_moved_leaves(counterparts: Counterparts, origins: Origins) -> list[LeafPair]:
    """At a later step: the parameters of the candidate with what those of the reference have become."""
    reference, candidate = counterparts.steps["reference"], counterparts.steps["candidate"]
    known = {reference.name_of(value): value for value in reference.leaves}
    found = []
    for value in candidate.leaves:
        here = [one for one in origins.get(candidate.name_of(value), ()) if one.parameter in known]
        content = value.array.reshape(-1).copy()
        for one in here:
            content[one.put] = known[one.parameter].array.reshape(-1)[one.take]
        if here:
            sources = tuple(known[one.parameter] for one in here)
            found.append(LeafPair(sources[0], value, content.reshape(value.array.shape), sources))
    return [pair for pair in found if pair.is_any_different]


def pair_lone_leaves(counterparts: Counterparts) -> list[LeafPair]:
    """What neither run shares with the other: parameters by their names, data by the calls that take it."""
    leaves = {side: [one for one in step.leaves if not one.updated] for side, step in counterparts.steps.items()}
    lone = {side: {one for one in values if not counterparts.exists(side, one)} for side, values in leaves.items()}
    found = [
        pair  # of two of one name one may exist elsewhere all the same: zeros
        for pair in _pair(leaves["reference"], leaves["candidate"], _is_named)
        if pair.reference in lone["reference"] or pair.candidate in lone["candidate"]
    ]
    for rule in (_is_used_alike(counterparts), _is_of_kind):
        taken = {value for pair in found for value in (pair.reference, pair.candidate)}
        left = {side: [one for one in values if one in lone[side] - taken] for side, values in leaves.items()}
        pairs = _pair(left["reference"], left["candidate"], rule)
        found += [replace(pair, is_certain=rule is not _is_of_kind) for pair in pairs]
    return sorted(found, key=lambda pair: pair.candidate.number)


def pair_placed_leaves(counterparts: Counterparts, taken: Collection[TrueValue]) -> Iterator[LeafPair]:
    """What one run alone has, with what the same call of the other run takes in the same place, though the other run
    may use that elsewhere, too: worth a trial. `taken`: the candidate's leaves that have a partner."""
    places = {side: _find_places(step) for side, step in counterparts.steps.items()}
    for place, value in places["candidate"].items():
        other = places["reference"].get(place)
        if other is None or value in taken or not (value.is_floating and other.is_floating):
            continue
        is_lone = not counterparts.exists("candidate", value) or not counterparts.exists("reference", other)
        if is_lone and value.array.shape == other.array.shape and value.is_trained == other.is_trained:
            yield LeafPair(other, value, other.array, (other,), is_certain=False)


def _find_places(step: TrueStep) -> dict[tuple[object, ...], TrueValue]:
    """Leaves, each by the first call that takes it: the how manyth of its kind in its module it is."""
    found: dict[tuple[object, ...], TrueValue] = {}
    counts, seen = Counter[object](), set[int]()
    for call in step.calls.values():
        kind = word_of(call), call.module_path
        counts[kind] += 1
        for slot, number in call.inputs.items():
            value = step.values[number]
            if value.is_leaf and not value.updated and number not in seen:
                found[kind, counts[kind], slot] = value
                seen.add(number)
    return found


def pair_nearly_equal_leaves(counterparts: Counterparts) -> Iterator[LeafPair]:
    """What counts as the same and is not so bit for bit: a gradient may differ by more than what it is taken at."""
    for value in counterparts.steps["candidate"].leaves:
        others = [one for one in counterparts.of("candidate", value) if one.is_leaf and one.is_floating]
        shaped = [one for one in others if one.array.shape == value.array.shape]
        pairs = [pair_leaves(one, value) for one in shaped]
        if pairs and all(pair.is_any_different for pair in pairs):
            yield pairs[0]


def _may_be(array: Array, other: Array) -> bool:
    return array.size == other.size and np.iscomplexobj(array) == np.iscomplexobj(other)


def _pair(references: Sequence[TrueValue], candidates: Sequence[TrueValue], rule: Rule) -> Iterator[LeafPair]:
    left = list(references)
    for value in candidates:
        shaped = (one for one in left if _may_be(one.array, value.array))
        partner = next((one for one in shaped if rule(one, value)), None)
        if partner is not None:
            left.remove(partner)
            yield pair_leaves(partner, value)


Rule = Callable[[TrueValue, TrueValue], bool]


def _is_named(reference: TrueValue, candidate: TrueValue) -> bool:
    return candidate.parameter is not None and reference.parameter == candidate.parameter


def _is_used_alike(counterparts: Counterparts) -> Rule:
    def decide(reference: TrueValue, candidate: TrueValue) -> bool:
        calls = _user(counterparts.steps["reference"], reference), _user(counterparts.steps["candidate"], candidate)
        return calls[0] == calls[1] and _is_of_kind(reference, candidate)

    return decide


def _is_of_kind(reference: TrueValue, candidate: TrueValue) -> bool:
    has_names = reference.parameter is not None, candidate.parameter is not None
    return has_names[0] == has_names[1] and reference.is_floating == candidate.is_floating


def _user(step: TrueStep, value: TrueValue) -> str:
    users = step.users.get(value.number, [])
    return word_of(users[0]) if users else ""
