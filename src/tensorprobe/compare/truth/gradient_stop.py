"""What stops a gradient in one run and not in the other: a `detach`, a part without gradients, a rounding.

Where the gradients part may be far behind it: a product gives a share back that depends on what was detached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.slice import SHAPED
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue


def find_stop(counterparts: Counterparts, value: TrueValue, side: str) -> TrueCall | None:
    """A gradient reaches this value in this run only: the last call of the other run on the way to the same value that
    is given something with a gradient."""
    step, seen = counterparts.steps[other_side(side)], set[str]()
    partners = counterparts.of(side, value)
    followed = [one for one in partners if one.is_followed]
    own = {one.number for other in partners for one in counterparts.of(other_side(side), other) if one.is_followed}
    if followed and len(followed) >= len(own):
        return _find_stop_behind(followed, step)
    waiting = [one for one in partners if not one.is_followed]
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


def _find_stop_behind(values: Sequence[TrueValue], step: TrueStep) -> TrueCall | None:
    """These could have a gradient: the first call on the way to the loss that makes of them what could not."""
    waiting, seen = [*values], {one.number for one in values}
    found: list[TrueCall] = []
    while waiting:
        for user in step.users.get(waiting.pop().number, ()):
            made = [step.values[number] for number in user.outputs.values() if step.values[number].is_floating]
            if made and not any(one.is_followed for one in made) and any(leads_to_loss(one, step) for one in made):
                found += [user] if word_of(user) not in SHAPED else []
            waiting += [one for one in made if one.is_followed and one.number not in seen]
            seen.update(one.number for one in made)
    return min(found, key=lambda call: call.position, default=None)


def leads_to_loss(value: TrueValue, step: TrueStep) -> bool:
    """Is the loss computed of its numbers, and not only of its shape?"""
    ends, waiting, seen = {root.number for root in step.roots}, [value.number], {value.number}
    while waiting:
        number = waiting.pop()
        if number in ends:
            return True
        users = (user for user in step.users.get(number, ()) if word_of(user) not in SHAPED)
        made = [one for user in users for one in user.outputs.values() if one not in seen]
        waiting += made
        seen.update(made)
    return False


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
