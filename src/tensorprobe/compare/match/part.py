"""Pairs that are none: a product that one run computes in two halves, a layer that one run computes turned.

Its half is no partner of the whole, the group of both is. Such a pair has inputs of other shapes, and what its call
returns goes to calls without a partner only. Or, in another framework, its call stands between two calls without a
partner: what they turn, it works on turned. Or the bias that one call adds itself is added there by the call after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tensorprobe.compare.match.idle import passes_on
from tensorprobe.compare.match.side import Side

Partners = Mapping[int, int]


def find_parts(
    reference: Side, candidate: Side, partner: Partners, other_partner: Partners, is_across: bool
) -> Iterator[int]:
    """Calls of the reference whose pair is to be dissolved, one after the other: each may make others free."""
    if not (reference.has_flow and candidate.has_flow):
        return
    for number, other in list(partner.items()):
        is_part = _is_part(reference, number, partner)
        if is_across and (
            _leaves_out(reference, number, partner, (candidate, other))
            or _leaves_out(candidate, other, other_partner, (reference, number))
        ):
            yield number
        elif is_part != _is_part(candidate, other, other_partner):
            part = (reference, number, partner) if is_part else (candidate, other, other_partner)
            has_same_shapes = _input_shapes(reference, number) == _input_shapes(candidate, other)
            if not has_same_shapes or (is_across and _takes_from_lone(*part)):
                yield number


def _is_part(side: Side, number: int, partner: Partners) -> bool:
    users = side.users.get(number)
    return bool(users) and all(user not in partner for user in users or ())


def _leaves_out(side: Side, number: int, partner: Partners, whole: tuple[Side, int]) -> bool:
    """Does a call without a partner take its result, and the bias that the other call takes in itself?"""
    if len(_input_shapes(*whole)) <= len(_input_shapes(side, number)):
        return False
    missing = _leaf_shapes(*whole) - _leaf_shapes(side, number)
    lone = [user for user in side.users.get(number, ()) if user not in partner]
    return any(_leaf_shapes(side, user) & missing for user in lone)


def _takes_from_lone(side: Side, number: int, partner: Partners) -> bool:
    """Does it work on what a call without a partner made, and not only passed on?"""
    lone = [source for source in side.sources(number) if source >= 0 and source not in partner]
    return any(not passes_on(side.calls[source]) for source in lone)


def _input_shapes(side: Side, number: int) -> list[tuple[int, ...] | None]:
    return [slot.shape for slot in side.calls[number].tensors if slot.is_input]


def _leaf_shapes(side: Side, number: int) -> Counter[tuple[int, ...] | None]:
    """Of what no call made: parameters, data."""
    tensors = side.calls[number].tensors
    return Counter(slot.shape for slot in tensors if slot.is_input and slot.source is None)
