"""One call of one run against several of the other, of which no inner value is known: from where to where?

It begins where both take the same. It ends before the call that takes up the result in both runs.
"""

from __future__ import annotations

from dataclasses import replace

from tensorprobe.compare.truth.call_likeness import find_alike
from tensorprobe.compare.truth.difference import Difference, Region
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueStep


def add_region(one: Difference, counterparts: Counterparts) -> Difference:
    """With the last call of those that stand against the one call of the other run, if there are several."""
    if one.reference is None or one.candidate is None or one.is_inside or one.is_found:
        return one
    steps = counterparts.steps
    for side in sorted(steps, key=lambda side: -len(_call(one, side).inputs)):
        single, many = _call(one, side), other_side(side)
        last = _find_last(single, steps[side], _call(one, many), steps[many])
        if last is not None:
            given = ((slot, steps[side].values[number]) for slot, number in single.inputs.items())
            shared = tuple(slot for slot, value in given if counterparts.exists(side, value))
            because = "the inputs are the same, but the results differ"
            return replace(one, region=Region(many, last, shared), because=because)
    return one


def _call(one: Difference, side: str) -> TrueCall:
    call = one.call(side)
    assert call is not None
    return call


def _find_last(single: TrueCall, step: TrueStep, first: TrueCall, other: TrueStep) -> TrueCall | None:
    """The call that makes what the other run's call makes at once, judged by who takes it up."""
    user = _find_user(single, step)
    if user is None:
        return None
    taker = find_alike(user, step.calls.values(), other.calls.values())
    taken = [] if taker is None else taker.inputs.values()
    makers = [_find_computing(other.values[number].maker, other) for number in taken]
    later = [call for call in makers if call is not None and call.position > first.position]
    return max(later, key=lambda call: call.position, default=None)


def _find_user(call: TrueCall, step: TrueStep) -> TrueCall | None:
    """The first call that computes with the result, and does not only move it."""
    waiting, seen = [call], {call.name}
    while waiting:
        made = [number for number in waiting.pop(0).outputs.values() if step.values[number].is_floating]
        for user in (one for number in made for one in step.users.get(number, [])):
            if not step.only_moves(user):
                return user
            if user.name not in seen:
                seen.add(user.name)
                waiting.append(user)
    return None


def _find_computing(name: str | None, step: TrueStep) -> TrueCall | None:
    """The call of this name, or the one before it that computed what it only moves."""
    call = step.calls.get(name) if name is not None else None
    while call is not None and step.only_moves(call):
        before = [step.maker(step.values[number]) for number in call.inputs.values()]
        earlier = [one for one in before if one is not None and one.position < call.position]
        call = next(iter(earlier), None)
    return call
