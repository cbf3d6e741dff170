"""What a compiled optimizer is given, of which nobody sees what it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.truth.hidden_update import find_hidden_updates, find_untouched
from tensorprobe.compare.truth.observable import GradientPair
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue, Update

Array = np.ndarray[Any, Any]
GRADIENT, WEIGHT = np.random.default_rng(0).standard_normal((2, 4, 5))
FACTOR = 0.25


def make_call(name: str, position: int, caller: str, inputs: list[int], outputs: list[int]) -> TrueCall:
    prefix, op, *_ = name.split(".")
    taken, made = (
        {f"{word}.{at}": number for at, number in enumerate(numbers)}
        for word, numbers in (("input", inputs), ("output", outputs))
    )
    return TrueCall(name, position, "pytorch", prefix, op, None, caller, taken, made)


def clip_and_update(factor: float) -> TrueStep:
    """As PyTorch does it, call by call."""
    clip, update = "Torch.mul.0.forward", "Tensor.add_.0.forward"
    values = [
        TrueValue(0, GRADIENT, "float32", None, "input.0", is_gradient=True),
        TrueValue(1, WEIGHT, "float32", None, "input.0", parameter="weight", is_trained=True),
        TrueValue(2, factor * GRADIENT, "float32", clip, "output.0"),
        TrueValue(3, WEIGHT - factor * GRADIENT, "float32", update, "output.0", parameter="weight", is_trained=True),
    ]
    calls = [make_call(clip, 0, "clipping", [0], [2]), make_call(update, 1, "optimizer", [1, 2], [3])]
    return TrueStep("reference", {call.name: call for call in calls}, values, Coverage())


def update_at_once(given: Array) -> TrueStep:
    """As MindSpore does it."""
    values = [TrueValue(0, given, "float32", None, "input.0", is_gradient=True)]
    update = make_call("Jit.Momentum.0.forward", 0, "optimizer", [0], [])
    return TrueStep("candidate", {update.name: update}, values, Coverage())


def test_gradients_that_only_the_other_run_clips_are_named_where_both_take_them() -> None:
    (found,) = find_untouched(Counterparts(clip_and_update(FACTOR), update_at_once(GRADIENT)))
    assert found.reference is not None and found.reference.name == "Torch.mul.0.forward"
    assert found.candidate is not None and found.candidate.name == "Jit.Momentum.0.forward"
    assert "one run clips the gradients before its optimizer gets them" in found.because


@pytest.mark.parametrize(("factor", "given"), [(FACTOR, FACTOR * GRADIENT), (1.0, GRADIENT)], ids=["clipped", "short"])
def test_gradients_that_are_clipped_too_or_too_short_to_be_are_the_same(factor: float, given: Array) -> None:
    assert not find_untouched(Counterparts(clip_and_update(factor), update_at_once(given)))


def update_unseen(started: Array, updated: Array, gradient: Array) -> TrueStep:
    """As MindSpore does it, with a mean of the weights afterwards that shows what became of one."""
    step = update_at_once(GRADIENT)
    weight = TrueValue(1, started, "float32", None, "input.1", parameter="weight", is_trained=True, gradient=gradient)
    made = Update("weight", "Jit.Momentum.0.forward")
    step.values[1:] = [weight, TrueValue(2, updated, "float32", None, "input.0", updated=made)]
    return step


def update_seen(gradient: Array) -> TrueStep:
    step = clip_and_update(1.0)
    step.values[1].gradient = gradient
    return step


@pytest.mark.parametrize(
    ("drift", "gradient", "error", "is_near"),
    [
        (0.0, GRADIENT, 0.0, True),
        (0.0, GRADIENT, 1e-2, False),
        (1e-3, GRADIENT, 0.0, True),  # a step before has moved the parameter, and this one does the same to it
        (0.0, 1e-12 * GRADIENT, 1e-2, False),
        (0.0, np.where(np.arange(5) == 0, 1e-9 * GRADIENT, GRADIENT), 1e-2, True),  # rounding, of which much is made
    ],
    ids=["same", "another", "later", "small", "nothing but rounding"],
)
def test_what_became_of_a_parameter_unseen_is_held_against_its_update(
    drift: float, gradient: Array, error: float, is_near: bool
) -> None:
    seen = update_seen(gradient)
    column = np.arange(5) == 0
    recorded = update_unseen(WEIGHT + drift, WEIGHT + drift - GRADIENT * (1 + error * column), gradient)
    as_if = update_unseen(WEIGHT, recorded.values[2].array, gradient)
    pair = GradientPair(seen.values[1], as_if.values[1], 0.0, 1e-9)
    steps = {"reference": seen, "candidate": recorded}
    (found,) = find_hidden_updates(Counterparts(seen, as_if), [pair], steps)
    assert found.is_near is is_near
