"""The choices, masks and indices that rounding made otherwise in one of two runs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from tensorprobe.compare.truth.call_likeness import unlikeness
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueStep

FLIPPED = "its inputs are the same without rounding, and its result is a choice that rounding changed"


def is_explained_by_rounding(step: TrueStep, calls: Collection[str] | None = None) -> bool:
    """Did it choose between values that were no further apart than what was compared was off? `calls`: not asked of
    others."""
    decisions = step.coverage.decisions
    return all(one.is_explained for name, one in decisions.items() if calls is None or name in calls)


def find_flipped(counterparts: Counterparts) -> list[Difference]:
    """Those that the other run has not made, as they come."""
    found = []
    for side, step in counterparts.steps.items():
        flipped = (step.calls[name] for name in step.coverage.decisions if name in step.calls)
        for call in (one for one in flipped if _is_lone(side, one, counterparts)):
            calls = {side: call, other_side(side): _find_partner(side, call, counterparts)}
            found.append((call.position, Difference("discontinuity", calls["reference"], calls["candidate"], FLIPPED)))
    return [one for _, one in sorted(found, key=lambda item: item[0])]


def _is_lone(side: str, call: TrueCall, counterparts: Counterparts) -> bool:
    values = counterparts.steps[side].values
    return not all(counterparts.exists(side, values[number]) for number in call.outputs.values())


def _find_partner(side: str, call: TrueCall, counterparts: Counterparts) -> TrueCall | None:
    """The choice that the other run makes of the same numbers."""
    other = counterparts.steps[other_side(side)]
    given = (counterparts.steps[side].values[number] for number in call.inputs.values())
    same = (one for value in given if value.is_floating for one in counterparts.of(side, value))
    choosing = [user for one in same for user in other.users.get(one.number, ()) if _chooses(user, other)]
    return min(choosing, key=partial(unlikeness, call), default=None)


def _chooses(call: TrueCall, step: TrueStep) -> bool:
    return any(not step.values[number].is_floating for number in call.outputs.values())
