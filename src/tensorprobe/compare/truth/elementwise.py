"""Calls whose result is a function of each number alone: an activation. Whatever order the numbers come in, the same
numbers go in and come out, so if those that go in are in the other run and those that come out are not, the function is
another one."""

from __future__ import annotations

import numpy as np

from tensorprobe.replay.true_step import TrueCall, TrueStep

_LEAST = 32
"""Of fewer numbers anything is a function."""
_MAX_TURNS = 8
"""So often a function turns from rising to falling, or back, at most."""
_FLAT = 1e-9


def is_elementwise(step: TrueStep, call: TrueCall) -> bool:
    """Is what comes out a function of what goes in, number by number? Then it turns a few times while what goes in
    rises; what depends on the whole row turns all the time."""
    given, made = ([step.values[number] for number in places.values()] for places in (call.inputs, call.outputs))
    given, made = ([value for value in values if value.is_floating] for values in (given, made))
    if len(given) != 1 or len(made) != 1 or not _LEAST <= given[0].array.size == made[0].array.size:
        return False
    if call.is_random or step.only_moves(call):
        return False
    result = made[0].array.reshape(-1)[np.argsort(given[0].array, axis=None)]
    if np.iscomplexobj(result) or not np.isfinite(result).all():
        return False
    steps = np.diff(result)
    steps = steps[np.abs(steps) > _FLAT * (result.max() - result.min())]
    return steps.size > 0 and int((np.diff(np.sign(steps)) != 0).sum()) <= _MAX_TURNS
