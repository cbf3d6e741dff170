"""For a call that has no partner: what comes closest to it in the other run, and why that is not it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.match.rule import unwrap
from tensorprobe.compare.match.side import Side
from tensorprobe.run.call import Call
from tensorprobe.word.spelling import canonical_op

_Key = tuple[str, str]
_MAX_SHAPES = 4


def find_nearest(
    side: Side, other: Side, partner: Mapping[int, int], other_partner: Mapping[int, int]
) -> Iterator[Unpaired]:
    """All calls of `side` without a partner, in their order. `other_partner` has the partners of the other's calls."""
    if len(partner) == len(side.calls):
        return
    places: dict[_Key, list[int]] = {}
    for number, call in enumerate(other.calls):
        places.setdefault((canonical_op(call), call.direction), []).append(number)
    expected = 0
    for number, call in enumerate(side.calls):
        if number in partner:
            expected = partner[number] + 1
            continue
        found = _closest(places.get((canonical_op(call), call.direction), []), expected, other_partner)
        if found is None:
            yield Unpaired(call, None, "")
        else:
            yield Unpaired(call, other.calls[found], _why(side, number, other, found, other_partner))


def _closest(places: list[int], expected: int, taken: Mapping[int, int]) -> int | None:
    """The nearest free one of the four around the place where it would stand, else the nearest."""
    start = bisect_left(places, expected)
    around = sorted(places[max(0, start - 2) : start + 2], key=lambda place: abs(place - expected))
    return next((place for place in around if place not in taken), around[0] if around else None)


def _why(side: Side, number: int, other: Side, found: int, taken: Mapping[int, int]) -> str:
    if found in taken:
        return f"already paired with {side.calls[taken[found]].name}"
    path, other_path = side.paths[number], other.paths[found]
    if path is not None and other_path is not None and unwrap(path) != unwrap(other_path):
        return f"in another module, {other_path or 'the model itself'}"
    shapes, other_shapes = _shapes(side.calls[number]), _shapes(other.calls[found])
    if shapes != other_shapes:
        return f"different shapes, {other_shapes} against {shapes}"
    return "at a different position"


def _shapes(call: Call) -> str:
    found = [str(list(slot.shape)) if slot.shape is not None else "?" for slot in call.tensors]
    return " ".join(found[:_MAX_SHAPES]) + (" …" if len(found) > _MAX_SHAPES else "")
