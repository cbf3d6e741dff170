"""Which calls lead to a difference, and where does it begin?"""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.truth.slice import Slice, Slicer
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueStep, TrueValue
from tests.compare.truth.test_cut import add_call, add_value
from tests.compare.truth.test_scattered import Array

X, W = (np.random.default_rng(seed).standard_normal((5, 4)) for seed in range(2))


def make_step(name: str, activation: Array) -> TrueStep:
    """`(centred * w).sum()`, where `centred` is what an activation gives, less its mean; besides, the
    mean of `centred` and a shift: that is the shift, whatever the activation is."""
    step = TrueStep(name, {}, [], Coverage())
    x, w = (add_value(step, array, None) for array in (X, W))
    shift = add_value(step, np.pi * np.arange(4) + 0.3, None)
    active = add_call(step, "act" if name == "reference" else "other", (x,), activation)
    centred = add_call(step, "centre", (active,), activation - activation.mean(0))
    add_call(step, "mean_and_shift", (centred, shift), centred.array.mean(0) + shift.array)
    loss = add_call(step, "total", (centred, w), np.array([(centred.array * W).sum()]))
    loss.is_root = True
    return step


def follow(reference: TrueStep, candidate: TrueStep, start: TrueValue) -> Slice:
    counterparts = Counterparts(reference, candidate)
    return Slicer("candidate", counterparts, counterparts.exists).follow([start])


def test_a_value_that_both_runs_have_shows_nothing_if_it_does_not_lead_to_what_differs() -> None:
    reference, candidate = make_step("reference", np.tanh(X)), make_step("candidate", np.sin(X))
    found = follow(reference, candidate, candidate.roots[0])
    assert [call.op for call in found.beginnings] == ["other"]


def test_a_call_whose_other_operand_is_a_mask_that_the_other_run_has_not_is_a_beginning_too() -> None:
    steps = {}
    for name, mask in (("reference", X > 0), ("candidate", X > 0.3)):
        step = TrueStep(name, {}, [], Coverage())
        x = add_value(step, X, None)
        chosen = add_call(step, "gt" if name == "candidate" else "mask", (x,), mask.astype(np.float64))
        product = add_call(step, "mul", (x, chosen), X * mask)
        product.is_root = True
        steps[name] = step
    found = follow(steps["reference"], steps["candidate"], steps["candidate"].roots[0])
    assert [call.op for call in found.beginnings] == ["gt", "mul"]


def test_what_takes_only_a_shape_does_not_lead_back_to_numbers() -> None:
    steps = {}
    for name, part, kept in (("reference", X[2:], X[1:]), ("candidate", X[:2], X[:-1])):
        step = TrueStep(name, {}, [], Coverage())
        x = add_value(step, X, None)
        shape = add_call(step, "narrow", (x,), part)
        end = add_call(step, "full_like", (shape,), np.full((1, 4), -100.25 if name == "candidate" else 3.5))
        chosen = add_call(step, "select", (x,), kept)
        joined = add_call(step, "cat", (chosen, end), np.concatenate([kept, end.array]))
        joined.is_root = True
        steps[name] = step
    found = follow(steps["reference"], steps["candidate"], steps["candidate"].roots[0])
    assert [call.op for call in found.beginnings] == ["full_like", "select"]
