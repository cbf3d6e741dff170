"""A parameter of the reference that nothing in the candidate depends on. While it is zero or one nobody sees it in the
results, and where choices are made, parameters cannot be moved to show it."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.judgement import SIDES, Judgement
from tensorprobe.compare.truth.value_index import ZERO, is_laid_out, is_same
from tensorprobe.replay.true_step import Array, TrueValue


def find_untaken(found: Judgement) -> list[Difference]:
    """Where the reference takes it. What the candidate holds in another form, as the sum of two biases, has the same
    gradient there."""
    gradients = [one.gradient for step in found.steps.values() for one in step.leaves if one.gradient is not None]
    floor = ZERO * max((float(np.linalg.norm(one)) for one in gradients), default=0.0)
    others = [one.gradient for one in found.steps[SIDES[1]].leaves if one.gradient is not None]
    unpaired = found.observables.unpaired_gradients
    lone = [one for one in unpaired if _is_constant(one) and not _has_same(one, others, floor)]
    differences = [one for value in lone if (one := _describe(value, found)) is not None]
    return sorted(differences, key=lambda one: 0 if one.reference is None else one.reference.position)


def _is_constant(value: TrueValue) -> bool:
    """Of any other the results would show that it is not taken; and it may be held in pieces."""
    return bool(np.all(value.array == value.array.flat[0]))


def _has_same(value: TrueValue, others: list[Array], floor: float) -> bool:
    gradient = value.gradient
    if gradient is None or not np.isfinite(gradient).all() or float(np.linalg.norm(gradient)) <= floor:
        return True
    return any(is_same(gradient, one) or is_laid_out(gradient, one, allows_square=True) for one in others)


def _describe(value: TrueValue, found: Judgement) -> Difference | None:
    step = found.steps[SIDES[0]]
    taker = next(iter(step.users.get(value.number, [])), None)
    if taker is None:
        return None
    results = [step.values[number] for number in taker.outputs.values()]
    partners = [one for result in results for one in found.counterparts.of(SIDES[0], result)]
    candidate = next((found.steps[SIDES[1]].maker(one) for one in partners), None)
    because = f"it does not take {value.parameter or value.slot}, as the reference does"
    return Difference("source", taker, candidate, because, is_clear=True)
