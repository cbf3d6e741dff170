"""The pairs that are made while two runs are aligned, as places in their lists of calls; and what is free still.

What a replay has shown comes first, after a mapping: calls that compute the same, and regions of calls that together
do. No rule makes a pair of two calls that compute different things.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorprobe.compare.match.group import Group
from tensorprobe.compare.match.proof import Proof
from tensorprobe.compare.match.rule import TRUTH
from tensorprobe.compare.match.side import Side


class Partners:
    """Each call of the reference has one at most, and each of the candidate."""

    def __init__(self, reference: Side, candidate: Side, proof: Proof) -> None:
        self._reference, self._candidate = reference, candidate
        self._proof = proof
        self.of: dict[int, int] = {}
        """Of the calls of the reference."""
        self.of_other: dict[int, int] = {}
        """Of those of the candidate."""
        self.proved: set[int] = set()
        """Calls of the reference whose partner is known by what both compute."""
        self.regions: list[Group] = []
        self._in_region: tuple[set[int], set[int]] = (set(), set())

    def free(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number not in self.of and number not in self._in_region[0]]

    def other_free(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number not in self.of_other and number not in self._in_region[1]]

    def pair(self, number: int, other: int) -> None:
        """The first pair stays: a mapping comes before all else."""
        if self.free([number]) and self.other_free([other]) and not self._is_refuted(number, other):
            self.of[number] = other
            self.of_other[other] = number

    def part(self, number: int) -> None:
        del self.of_other[self.of.pop(number)]

    def pair_proved(self) -> None:
        """What a replay has shown, as far as no mapping says otherwise."""
        places, other_places = self._reference.number_of, self._candidate.number_of
        for name, other_name in self._proof.pairs.items():
            number, other = places[name], other_places[other_name]
            if number not in self.of and other not in self.of_other:
                self.pair(number, other)
                self.proved.add(number)
        for region in self._proof.regions:
            members = {places[name] for name in region.reference}
            others = {other_places[name] for name in region.candidate}
            if members.isdisjoint(self.of) and others.isdisjoint(self.of_other):
                exits = [(places[one], other_places[other]) for one, other in region.exits]
                self.regions.append(Group(members, others, exits, rule=TRUTH))
                self._in_region[0].update(members)
                self._in_region[1].update(others)

    def is_refuted_group(self, group: Group) -> bool:
        return any(self._is_refuted(one, other) for one, other in group.exits)

    def _is_refuted(self, number: int, other: int) -> bool:
        return self._proof.is_refuted(self._reference.calls[number].name, self._candidate.calls[other].name)
