"""Is a call one step of a sum that the other run takes in another order?"""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.partial_sum import PartialSums
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueStep, TrueValue
from tests.compare.truth.test_cut import add_call, add_value
from tests.compare.truth.test_scattered import Array

A, B, C, D = (np.random.default_rng(seed).standard_normal((3, 5)) for seed in range(4))


def make_step(name: str, third: Array) -> tuple[TrueStep, list[TrueValue]]:
    step = TrueStep(name, {}, [], Coverage())
    return step, [add_value(step, array, None) for array in (A, B, third)]


def make_reference() -> TrueStep:
    """`(a + b) + c`"""
    step, (a, b, c) = make_step("reference", C)
    add_call(step, "add", (add_call(step, "add", (a, b), A + B), c), A + B + C)
    return step


def has_first_sum(candidate: TrueStep) -> bool:
    reference = make_reference()
    sums = PartialSums(Counterparts(reference, candidate))
    return sums.has("reference", reference.calls["Torch.add.0.forward"])


def test_terms_that_the_other_run_adds_up_in_another_order_are_no_difference() -> None:
    candidate, (a, b, d) = make_step("candidate", D)
    add_call(candidate, "add", (a, add_call(candidate, "add", (b, d), B + D)), A + B + D)
    assert has_first_sum(candidate)


def test_a_stack_that_is_summed_up_is_a_sum_of_what_was_stacked() -> None:
    candidate, (a, b, d) = make_step("candidate", D)
    stacked = add_call(candidate, "stack", (a, b, d), np.stack([A, B, D]))
    add_call(candidate, "sum", (stacked,), A + B + D)
    assert has_first_sum(candidate)


@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_a_term_with_another_factor_is_a_difference(factor: float) -> None:
    candidate, (a, b, d) = make_step("candidate", D)
    scaled = add_call(candidate, "mul", (b,), factor * B)
    add_call(candidate, "add", (a, add_call(candidate, "add", (scaled, d), factor * B + D)), A + factor * B + D)
    assert not has_first_sum(candidate)


def test_a_term_that_is_left_out_is_a_difference() -> None:
    candidate, (a, _, d) = make_step("candidate", D)
    add_call(candidate, "add", (a, d), A + D)
    assert not has_first_sum(candidate)


def test_a_sum_that_is_used_for_something_else_too_is_a_value_of_its_own() -> None:
    reference = make_reference()
    first = reference.values[reference.calls["Torch.add.0.forward"].outputs["output.0"]]
    add_call(reference, "exp", (first,), np.exp(A + B))
    candidate, (a, b, d) = make_step("candidate", D)
    add_call(candidate, "add", (a, add_call(candidate, "add", (b, d), B + D)), A + B + D)

    sums = PartialSums(Counterparts(reference, candidate))
    assert not sums.has("reference", reference.calls["Torch.add.0.forward"])
