"""A parameter of one run that nothing in the other depends on. While it is zero or one nobody sees it in the results,
and where choices are made, or what was recorded is taken, parameters cannot be moved to show it."""

from __future__ import annotations

from collections.abc import Iterator

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.judgement import SIDES, Judgement
from tensorprobe.compare.truth.observable import find_held_otherwise
from tensorprobe.compare.truth.same_array import is_constant
from tensorprobe.compare.truth.value_index import other_side


def find_untaken(found: Judgement) -> list[Difference]:
    """Where one run takes it, the first of these places first. Of one that is not all zeros or ones the results would
    show that it is not taken; and it may be held in pieces."""
    return [one for side in SIDES for one in _find_taken_here(side, found)]


def _find_taken_here(side: str, found: Judgement) -> Iterator[Difference]:
    held = find_held_otherwise(found.counterparts, found.observables)[side]
    step, other = found.steps[side], found.steps[other_side(side)]
    lone = [one for one in found.observables.unpaired[side] if is_constant(one.array) and one not in held]
    taking = [(users[0], value) for value in lone if (users := step.users.get(value.number))]
    for taker, value in sorted(taking, key=lambda pair: pair[0].position):
        results = [step.values[number] for number in taker.outputs.values()]
        partners = [one for result in results for one in found.counterparts.of(side, result)]
        calls = {side: taker, other_side(side): next((other.maker(one) for one in partners), None)}
        name = value.parameter or value.slot
        because = f"it does not use {name}, but the reference does"
        if side == SIDES[1]:
            because = f"it uses {name}, but the reference does not"
        yield Difference("source", calls[SIDES[0]], calls[SIDES[1]], because, is_clear=True)
