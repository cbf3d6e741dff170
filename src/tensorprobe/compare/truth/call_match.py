"""Which calls of two runs are the same, by what they compute; names, modules and order choose among equals.

Two calls that do the same thing and give the same results are a pair. Of what is left, all that leads from values that
both runs have to another such value is a region: one run computes it in other calls than the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tensorprobe.compare.match.proof import EqualRegion, Proof
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueValue

_Node = tuple[str, str]
"""A side, and the name of a call."""


def match_calls(counterparts: Counterparts, is_equal: bool) -> Proof:
    """`is_equal`: both runs compute the same in the end. Then two calls that do not are no pair."""
    matcher = _CallMatcher(counterparts)
    matcher.pair()
    is_refuted = partial(_is_refuted, counterparts, is_equal)
    return Proof(matcher.pairs, list(matcher.find_regions()), is_refuted, is_equal)


class _CallMatcher:
    def __init__(self, counterparts: Counterparts) -> None:
        self.pairs: dict[str, str] = {}
        self._counterparts = counterparts
        self._steps = counterparts.steps
        self._taken: dict[str, set[str]] = {side: set() for side in self._steps}

    def pair(self) -> None:
        """Calls with the same results that each take what the other takes. Of several partners one of the same name, in
        a module of the same name, else the first in the order of execution; those of the same name before all."""
        for is_alike in (True, False):
            for call in self._free("candidate"):
                partners = [other for other in self._find_equal(call) if (word_of(call) == word_of(other)) >= is_alike]
                if partners:
                    partner = min(partners, key=lambda other: (other.module_path != call.module_path, other.position))
                    self.pairs[partner.name] = call.name
                    self._taken["reference"].add(partner.name)
                    self._taken["candidate"].add(call.name)

    def find_regions(self) -> Iterator[EqualRegion]:
        """Regions that share a call are one."""
        region_of: dict[_Node, set[_Node]] = {}
        exits: list[tuple[_Node, _Node]] = list(self._find_exits())
        for pair in exits:
            joined = set().union(*(self._lead_to(*node) for node in pair))
            for node in list(joined):
                joined |= region_of.get(node, set())
            region_of.update(dict.fromkeys(joined, joined))
        for region in {id(one): one for one in region_of.values()}.values():
            names = {side: frozenset(name for one, name in region if one == side) for side in self._steps}
            ends = tuple((one[1], other[1]) for one, other in exits if one in region)
            yield EqualRegion(names["reference"], names["candidate"], ends)

    def _free(self, side: str) -> Iterator[TrueCall]:
        for call in sorted(self._steps[side].calls.values(), key=lambda call: call.position):
            if call.caller is None and call.name not in self._taken[side]:
                yield call

    def _find_equal(self, call: TrueCall) -> Iterator[TrueCall]:
        """Free calls of the reference that compute what this one of the candidate computes, from the same."""
        results = self._values("candidate", call.outputs)
        makers = {one.maker for one in self._counterparts.of("candidate", results[0])} if results else set()
        for other in (self._steps["reference"].calls[name] for name in makers if name is not None):
            if other.name not in self._taken["reference"] and other.caller is None:
                is_given_the_same = self._takes("candidate", call, other) and self._takes("reference", other, call)
                if is_given_the_same and all(self._has_result(other, one, call) for one in results):
                    yield other

    def _takes(self, side: str, call: TrueCall, other: TrueCall) -> bool:
        return all(
            self._is_among(side, value, other.inputs)
            for value in self._values(side, call.inputs)
            if value.is_floating and not self._counterparts.is_plain(side, value)
        )

    def _has_result(self, reference: TrueCall, result: TrueValue, candidate: TrueCall) -> bool:
        """Does it give this, too? In another order of the axes only if both do the same."""
        numbers = set(reference.outputs.values())
        found = [one for one in self._counterparts.of("candidate", result) if one.number in numbers]
        if word_of(reference) == word_of(candidate):
            return bool(found)
        return any(is_same(one.array, result.array, self._counterparts.tolerance) for one in found)

    def _is_among(self, side: str, value: TrueValue, slots: dict[str, int]) -> bool:
        numbers = set(slots.values())
        return any(one.number in numbers for one in self._counterparts.of(side, value))

    def _find_exits(self) -> Iterator[tuple[_Node, _Node]]:
        """Free calls of both runs that give the same."""
        taken: set[str] = set()
        for call in self._free("candidate"):
            for result in self._values("candidate", call.outputs):
                makers = (self._steps["reference"].maker(one) for one in self._counterparts.of("candidate", result))
                free = [one for one in makers if one and one.name not in taken | self._taken["reference"]]
                free = [one for one in free if self._has_result(one, result, call)]
                if free:
                    first = min(free, key=lambda one: one.position)
                    taken.add(first.name)
                    yield ("reference", first.name), ("candidate", call.name)

    def _lead_to(self, side: str, name: str) -> set[_Node]:
        """A call, and the free ones before it that make what the other run does not have."""
        found, waiting = {name}, [name]
        while waiting:
            for value in self._values(side, self._steps[side].calls[waiting.pop()].inputs):
                maker = self._steps[side].maker(value)
                if maker is None or maker.name in found | self._taken[side] or self._counterparts.exists(side, value):
                    continue
                found.add(maker.name)
                waiting.append(maker.name)
        return {(side, one) for one in found}

    def _values(self, side: str, slots: dict[str, int]) -> list[TrueValue]:
        return [self._steps[side].values[number] for number in slots.values()]


def _is_refuted(counterparts: Counterparts, is_equal: bool, reference: str, candidate: str) -> bool:
    """Have they no result in common, although another call of the kind has that of one of them?"""
    steps = counterparts.steps
    calls = {"reference": steps["reference"].calls.get(reference), "candidate": steps["candidate"].calls.get(candidate)}
    is_elsewhere = is_equal
    for side, call in calls.items():
        other = calls[other_side(side)]
        if call is None or other is None or not call.outputs:
            return False
        for number in call.outputs.values():
            for found in counterparts.of(side, steps[side].values[number]):
                maker = steps[other_side(side)].maker(found)
                if found.number in other.outputs.values():
                    return False
                is_elsewhere = is_elsewhere or (maker is not None and word_of(maker) == word_of(call))
    return is_elsewhere
