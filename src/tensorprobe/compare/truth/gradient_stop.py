"""What stops a gradient in one run and not in the other: a `detach`, a part without gradients, a rounding.

Where the gradients part may be far behind it: a product gives a share back that depends on what was detached.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue


def find_stop(counterparts: Counterparts, value: TrueValue, side: str) -> TrueCall | None:
    """A gradient reaches this value in this run only: the last call of the other run on the way to the same value that
    is given something with a gradient."""
    step, seen = counterparts.steps[other_side(side)], set[str]()
    waiting = [one for one in counterparts.of(side, value) if not one.is_followed]
    while waiting:
        maker = step.maker(waiting.pop(0))
        if maker is None or maker.name in seen:
            continue
        seen.add(maker.name)
        given = [step.values[number] for number in maker.inputs.values() if step.values[number].is_floating]
        if any(one.is_followed for one in given):
            return maker
        waiting += given
    return None


def find_exit(step: TrueStep, call: TrueCall, values: Iterable[TrueValue]) -> TrueCall | None:
    """Where no gradients are followed through a whole network, on the way from this call to these values: the first
    call that is made outside of all modules, where somebody has asked for that. None if there is no such call."""
    if call.module_path is None or step.only_moves(call):
        return None
    ends = {value.number for value in values}
    wanted, reached = ends | step.find_before(ends), set(call.outputs.values())
    for one in sorted(step.calls.values(), key=lambda one: one.position):
        if one.position <= call.position or reached.isdisjoint(one.inputs.values()):
            continue
        reached.update(one.outputs.values())
        if one.module_path is None and one.inside is None and not wanted.isdisjoint(one.outputs.values()):
            return one
    return None


def find_going_on(counterparts: Counterparts, value: TrueValue, side: str, stop: TrueCall) -> TrueCall | None:
    """Where this run leads on to the value from what the other one stops: rather a call like that which takes what is
    left there. None if it is the value itself that is stopped."""
    step, other = counterparts.steps[side], counterparts.steps[other_side(side)]
    taken = (other.values[number] for number in stop.inputs.values())
    followed = [one for one in taken if one.is_followed]
    passed = {same.number for one in followed for same in counterparts.of(other_side(side), one)}
    if value.number in passed:
        return None
    wanted = {value.number, *step.find_before({value.number})}
    on_the_way = (call for call in step.calls.values() if not wanted.isdisjoint(call.outputs.values()))
    taking = [call for call in on_the_way if not passed.isdisjoint(call.inputs.values())]
    words = {word_of(user) for number in stop.outputs.values() for user in other.users.get(number, [])}
    return min(taking, key=lambda call: (word_of(call) not in words, call.position), default=None)
