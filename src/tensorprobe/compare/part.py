"""Pairs that are none: a product that one run computes in two halves, a layer that one run computes turned.

Its half is no partner of the whole, the group of both is. Such a pair has inputs of other shapes, and what its call
returns goes to calls without a partner only. Or, in another framework, its call stands between two calls without a
partner: what they turn, it works on turned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorprobe.compare.idle import passes_on
from tensorprobe.compare.side import Side

Partners = Mapping[int, int]


def find_parts(
    reference: Side, candidate: Side, partner: Partners, other_partner: Partners, is_across: bool
) -> Iterator[int]:
    """Calls of the reference whose pair is to be dissolved, one after the other: each may make others free."""
    if not (reference.has_flow and candidate.has_flow):
        return
    users, other_users = _users(reference), _users(candidate)
    for number, other in list(partner.items()):
        is_part = _is_part(users.get(number), partner)
        if is_part == _is_part(other_users.get(other), other_partner):
            continue
        part = (reference, number, partner) if is_part else (candidate, other, other_partner)
        has_same_shapes = _input_shapes(reference, number) == _input_shapes(candidate, other)
        if not has_same_shapes or (is_across and _takes_from_lone(*part)):
            yield number


def _users(side: Side) -> dict[int, list[int]]:
    """The forward API calls that take what each call returned."""
    found: dict[int, list[int]] = {}
    for number in side.forward:
        if side.calls[number].kind == "api":
            for source in side.sources(number):
                found.setdefault(source, []).append(number)
    return found


def _is_part(users: list[int] | None, partner: Mapping[int, int]) -> bool:
    return bool(users) and all(user not in partner for user in users or ())


def _takes_from_lone(side: Side, number: int, partner: Mapping[int, int]) -> bool:
    """Does it work on what a call without a partner made, and not only passed on?"""
    lone = [source for source in side.sources(number) if source >= 0 and source not in partner]
    return any(not passes_on(side.calls[source]) for source in lone)


def _input_shapes(side: Side, number: int) -> list[tuple[int, ...] | None]:
    return [slot.shape for slot in side.calls[number].tensors if slot.is_input]
