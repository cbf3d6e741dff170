"""A loss that is multiplied on its way into the backward, and gradients that are divided again before the update."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.truth.observable import Observables
from tensorprobe.compare.truth.value_index import ZERO, Counterparts


def find_loss_scale(counterparts: Counterparts, observed: Observables) -> float | None:
    """How many times that of the reference the candidate's loss is, if both runs update their parameters by the same
    gradients all the same."""
    is_possible = not observed.has_same_loss and observed.is_finite and observed.reference_total != 0
    if not is_possible or not any(_has_what_it_takes(side, counterparts) for side in counterparts.steps):
        return None
    return observed.candidate_total / observed.reference_total


def _has_what_it_takes(side: str, counterparts: Counterparts) -> bool:
    """Has the other run the gradients of parameters that calls of this one take? Not all of them, where parameters that
    are joined in one run are several in the other."""
    step = counterparts.steps[side]
    taken = [value for value in step.values if value.is_gradient and step.users.get(value.number)]
    largest = max((float(np.linalg.norm(value.array)) for value in taken), default=0.0)
    telling = [value for value in taken if float(np.linalg.norm(value.array)) > ZERO * largest]
    return 2 * sum(counterparts.exists(side, value) for value in telling) > len(telling)
