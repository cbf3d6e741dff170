"""Matches of groups, forward, backward and recomputed, with the slots at their boundary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorprobe.compare.match.alignment import Match, SlotPair
from tensorprobe.compare.match.boundary import (
    PlacePair,
    backward_boundary_slots,
    boundary_slots,
    count_uses,
    pair_outside_inputs,
)
from tensorprobe.compare.match.group import Group
from tensorprobe.compare.match.side import Side
from tensorprobe.model.name import BACKWARD, RECOMPUTE
from tensorprobe.run.call import Call

Exits = list[tuple[Call, Call]]


class GroupMatcher:
    """`exits`: the ends of all groups, which stand for each other as producers."""

    def __init__(
        self, reference: Side, candidate: Side, partner: Mapping[int, int], exits: set[tuple[int, int]]
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._partner = partner
        self._exits = exits

    def matches(self, group: Group) -> Iterator[Match]:
        calls = [self._reference.calls[number] for number in sorted(group.reference)]
        others = [self._candidate.calls[number] for number in sorted(group.candidate)]
        exits = [(self._reference.calls[one], self._candidate.calls[other]) for one, other in group.exits]
        inputs = pair_outside_inputs(calls, others, self._is_partner, group.is_layer)
        yield Match(tuple(calls), tuple(others), group.rule, tuple(boundary_slots(inputs, exits)))
        for direction in (BACKWARD, RECOMPUTE):
            followers = _followers(self._reference, calls, direction)
            other_followers = _followers(self._candidate, others, direction)
            if followers and other_followers:
                uses = (calls, others)
                slots = self._follower_slots(direction, inputs, exits, uses)
                yield Match(tuple(followers), tuple(other_followers), group.rule, tuple(slots))

    def _follower_slots(
        self, direction: str, inputs: list[PlacePair], exits: Exits, groups: tuple[list[Call], list[Call]]
    ) -> list[SlotPair]:
        if direction == BACKWARD:
            uses = (count_uses(groups[0]), count_uses(groups[1]))
            return backward_boundary_slots(
                inputs,
                exits,
                lambda call: _follower(self._reference, call, BACKWARD),
                lambda call: _follower(self._candidate, call, BACKWARD),
                uses,
            )
        repeated = [
            (_follower(self._reference, one, direction), _follower(self._candidate, other, direction))
            for one, other in exits
        ]
        return boundary_slots((), [(one, other) for one, other in repeated if one is not None and other is not None])

    def _is_partner(self, name: str, other_name: str) -> bool:
        number, other = self._reference.number_of.get(name), self._candidate.number_of.get(other_name)
        if number is None or other is None:
            return False
        return self._partner.get(number) == other or (number, other) in self._exits


def _follower(side: Side, call: Call, direction: str) -> Call | None:
    number = side.other_direction(call, direction)
    return None if number is None else side.calls[number]


def _followers(side: Side, calls: list[Call], direction: str) -> list[Call]:
    """The backward calls, or the recomputations, of a group, in their order."""
    found = [_follower(side, call, direction) for call in calls]
    return sorted((call for call in found if call is not None), key=lambda call: call.position)
