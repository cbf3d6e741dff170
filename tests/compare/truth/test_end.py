"""What an optimizer that is one compiled call is given: is it what the other run makes of its gradients?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.truth.end import find_ends, find_given
from tensorprobe.compare.truth.observable import GradientPair
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue, Update

Array = np.ndarray[Any, Any]
PARTS = np.random.default_rng(0).standard_normal((3, 4, 5))
SMALL = np.concatenate([PARTS[:2], 1e-18 * PARTS[2:]])


def add_up_parts(parts: Array) -> TrueStep:
    """Each of three gradients is added to itself."""
    step = TrueStep("reference", {}, [], Coverage())
    for part in parts:
        number, name = len(step.values), f"Tensor.add.{len(step.calls)}.forward"
        step.values.append(TrueValue(number, part, "float32", None, "input.0", is_gradient=True))
        step.values.append(TrueValue(number + 1, 2 * part, "float32", name, "output.0"))
        made = {"output.0": number + 1}
        step.calls[name] = TrueCall(
            name, len(step.calls), "pytorch", "Tensor", "add", None, None, {"input.0": number}, made
        )
    return step


def add_up_joined(whole: Array) -> TrueStep:
    """One gradient of all three, which a compiled call takes; what it makes of the parameter shows later."""
    add, update = "Functional.add.0.forward", "Jit.Adam.0.forward"
    values = [
        TrueValue(0, whole, "float32", None, "input.0", is_gradient=True),
        TrueValue(1, 2 * whole, "float32", add, "output.0"),
        TrueValue(2, whole - 1, "float32", None, "input.0", updated=Update("weight", update)),
    ]
    calls = [
        TrueCall(add, 0, "mindspore", "Functional", "add", None, None, {"input.0": 0}, {"output.0": 1}),
        TrueCall(update, 1, "mindspore", "Jit", "Adam", None, "optimizer", {"input.0": 1}, {}),
        TrueCall("Tensor.mul.0.forward", 2, "mindspore", "Tensor", "mul", None, None, {"input.0": 2}, {}),
    ]
    return TrueStep("candidate", {call.name: call for call in calls}, values, Coverage())


ZEROS = np.zeros((1, 4, 5))


@pytest.mark.parametrize(
    ("parts", "whole", "count"),
    [
        (PARTS, PARTS, 0),
        (SMALL, np.concatenate([SMALL[:2], -3 * SMALL[2:]]), 0),
        (PARTS, PARTS * [[[1]], [[1]], [[1.1]]], 1),
        (PARTS, np.concatenate([PARTS[:2], ZEROS]), 1),
        (PARTS, PARTS[[1, 0, 2]], 1),
    ],
    ids=["joined", "one is zero but for rounding", "one is another", "one is left out", "two are exchanged"],
)
def test_gradients_of_joined_parameters_are_made_of_their_parts(parts: Array, whole: Array, count: int) -> None:
    reference, candidate = add_up_parts(parts), add_up_joined(whole.reshape(12, 5))
    weight = TrueValue(9, np.ones((12, 5)), "float32", None, "input.1", "weight", "weight", is_trained=True)
    weight.gradient = 2 * parts.reshape(12, 5)
    pairs = []
    for part in parts:
        leaf = TrueValue(9, np.ones((4, 5)), "float32", None, "input.1", "part", "part", is_trained=True)
        leaf.gradient = 2 * part
        pairs.append(GradientPair(leaf, weight, 0.0))
    given = find_given(Counterparts(reference, candidate), pairs)
    assert len(given["candidate"]) == count
    assert not given["reference"]


def test_a_gradient_that_is_zero_in_exact_arithmetic_is_given_as_the_rounding_that_it_is() -> None:
    """As that of a bias before a norm: clipping multiplies it by the same, and nothing of it is the other run's."""
    candidate = add_up_joined(PARTS.reshape(12, 5))
    rounding = TrueValue(3, 1e-17 * PARTS[0], "float32", "Functional.add.0.forward", "output.1")
    candidate.values.append(rounding)
    candidate.calls["Functional.add.0.forward"].outputs["output.1"] = 3
    candidate.calls["Jit.Adam.0.forward"].inputs["input.1"] = 3
    whole = add_up_parts(PARTS.reshape(1, 12, 5))
    assert not find_given(Counterparts(whole, candidate), ())["candidate"]


def test_what_a_compiled_optimizer_is_given_is_no_end() -> None:
    candidate, reference = add_up_joined(PARTS.reshape(12, 5)), add_up_parts(1.001 * PARTS.reshape(1, 12, 5))
    ends = find_ends(Counterparts(reference, candidate), is_training=False)
    assert 1 not in [one.number for one in ends["candidate"]]
