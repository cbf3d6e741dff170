"""How much error is allowed: by the tolerances that the user gave, or by what rounding and the inputs explain."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.judge.tolerance import (
    Explained,
    cancellation,
    error_of,
    explain,
    exponent_noise,
    is_within_fixed,
    natural_norm,
    round_off,
)
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.noise import SILENCE, Noise
from tensorprobe.compare.measure.statistic_measure import with_statistics_of
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import ValuePair
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot
from tests.compare.recording import Recording
from tests.compare.tensor_slot import make_slot
from tests.compare.test_engine import X, compared

STATISTICS = {"max": 4.0, "min": -2.0, "mean": 0.5, "norm": 10.0}
WIDE = CompareOptions(rtol=1e3, atol=1e3)


def pair(reference: dict[str, Any], candidate: dict[str, Any], allclose: bool | None = None) -> ValuePair:
    measurement = Measurement("statistics", is_equal=False, allclose=allclose)
    return ValuePair(make_slot(**reference), make_slot(**candidate), "different", measurement)


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_that_only_one_side_has_is_within_no_tolerance(name: str, missing: float | None) -> None:
    partial = {**STATISTICS, name: missing}
    assert not is_within_fixed(pair(STATISTICS, partial), WIDE)
    assert not is_within_fixed(pair(partial, STATISTICS), WIDE)
    assert is_within_fixed(pair(partial, partial), WIDE), "what neither side has says nothing"


@pytest.mark.parametrize("name", STATISTICS)
def test_every_statistic_has_to_be_within_the_tolerances(name: str) -> None:
    nearby = {**STATISTICS, name: STATISTICS[name] + 0.25}
    assert is_within_fixed(pair(STATISTICS, nearby), CompareOptions(atol=0.25))
    assert not is_within_fixed(pair(STATISTICS, nearby), CompareOptions(atol=0.24))


def test_rtol_is_relative_to_the_reference_and_added_to_atol() -> None:
    small, large = {**STATISTICS, "norm": 8.0}, {**STATISTICS, "norm": 10.0}
    assert is_within_fixed(pair(large, small), CompareOptions(rtol=0.2))
    assert not is_within_fixed(pair(small, large), CompareOptions(rtol=0.2))
    assert is_within_fixed(pair(small, large), CompareOptions(rtol=0.2, atol=0.4))


def test_the_same_infinity_is_within_every_tolerance() -> None:
    infinite = {**STATISTICS, "max": math.inf}
    assert is_within_fixed(pair(infinite, infinite), CompareOptions(atol=0.0))
    assert not is_within_fixed(pair(STATISTICS, infinite), WIDE)
    assert not is_within_fixed(pair(infinite, STATISTICS), WIDE)


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_or_inf_of_one_side_is_within_no_tolerance_whatever_the_statistics_say(kind: str, side: str) -> None:
    """NaN is left out of the statistics, and so they may be the same."""
    value = pair(STATISTICS, STATISTICS)
    value.measurement = Measurement("statistics", is_equal=False, **{f"{kind}_only_{side}": 1})  # type: ignore[arg-type]
    assert not is_within_fixed(value, WIDE)


@pytest.mark.parametrize("allclose", [True, False])
def test_where_the_elements_were_compared_they_decide(allclose: bool) -> None:
    assert is_within_fixed(pair(STATISTICS, {**STATISTICS, "max": 5.0}, allclose), CompareOptions(atol=0.5)) is allclose
    assert is_within_fixed(pair(STATISTICS, STATISTICS, allclose), WIDE) is allclose


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_run_that_computed_nan_does_not_agree_within_any_tolerance(tmp_path: Path, task: str) -> None:
    spoilt = X.copy()
    spoilt[0, 0] = math.nan
    for first, second in ((X, spoilt), (spoilt, X)):
        reference, candidate = Recording(task), Recording(task)
        for run, output in ((reference, first), (candidate, second)):
            run.api("Functional.relu", run.data(np.ones_like(X)), output=output)
        assert not compared(tmp_path, reference, candidate, rtol=10.0, atol=10.0)


FLOAT32, BFLOAT16 = 2.0**-24, 2.0**-8
RANDOM = np.random.default_rng(0)


def described(array: Any, slot: str = "output.0") -> TensorSlot:
    return with_statistics_of(make_slot(slot=slot, shape=array.shape, is_input=not slot.startswith("output")), array)


def call(op: str, *slots: TensorSlot, direction: str = "forward", prefix: str = "Torch") -> Call:
    return Call(f"{prefix}.{op}.0.{direction}", 0, "api", prefix, op, 0, direction, "", None, None, slots)


def normal(*shape: int, size: float = 1.0) -> Any:
    return RANDOM.normal(size=shape) * size


def test_an_error_is_what_norm_and_worst_element_say_and_infinite_for_nan_of_one_side() -> None:
    assert error_of(Measurement("tensor", relative_l2=0.1, relative_max=0.2)) == Noise(0.1, 0.2)
    assert error_of(Measurement("statistics", relative_l2=0.1)) == Noise(0.1, 0.0)
    assert error_of(Measurement("statistics", relative_max=0.2)) == Noise(0.0, 0.2)
    assert error_of(Measurement("tensor", is_equal=True, relative_l2=0.0, relative_max=0.0)) == SILENCE
    assert error_of(Measurement("checksum", is_equal=False)) is None
    assert error_of(Measurement("tensor", problem="x.pt is missing")) is None
    for name in ("nan_only_reference", "nan_only_candidate", "inf_only_reference", "inf_only_candidate"):
        spoilt = Measurement("tensor", relative_l2=0.1, relative_max=0.2, **{name: 1})  # type: ignore[arg-type]
        assert error_of(spoilt) == Noise(math.inf, math.inf), name


def test_rounding_is_that_of_float32_inside_a_call_and_of_the_dtype_in_its_result() -> None:
    assert round_off("torch.float32", 0.0) == 32 * FLOAT32 + 4 * FLOAT32
    assert round_off("torch.bfloat16", 0.0) == 32 * FLOAT32 + 4 * BFLOAT16
    assert round_off("torch.float64", 0.0) == (32 + 4) * 2.0**-53
    assert round_off("torch.float32", 256.0) == 64 * FLOAT32 + 4 * FLOAT32, "256 terms double it"
    assert round_off("torch.int64") == 0.0


@pytest.mark.parametrize(
    ("op", "inputs", "result"),
    [
        ("matmul", [("input.0", normal(48, 128)), ("input.1", normal(128, 32, size=3.0))], lambda x, y: x @ y),
        ("linear", [("input.0", normal(6, 8, 128)), ("input.1", normal(32, 128))], lambda x, w: x @ w.T),
        ("bmm", [("input.0", normal(4, 48, 128)), ("input.1", normal(4, 128, 32))], lambda x, y: x @ y),
        ("sum", [("input.0", normal(2048, 16))], lambda x: x.sum(1)),
        ("mean", [("input.0", normal(2048, 16))], lambda x: x.mean(1)),
        ("add", [("input.0", normal(48, 128)), ("input.1", normal(48, 128, size=5.0))], lambda x, y: x + y),
        ("sub", [("input.0", normal(48, 128, size=5.0)), ("input.1", normal(128))], lambda x, y: x - y),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_terms_that_do_not_cancel_make_a_result_of_its_natural_norm(op: str, inputs: Any, result: Any) -> None:
    output = described(result(*(array for _, array in inputs)))
    found = natural_norm(call(op, *(described(array, slot) for slot, array in inputs), output), output)
    # A batch is counted as if its parts were multiplied with each other too: more terms, but never more than K.
    assert found == pytest.approx(output.norm, rel=0.1)


def test_the_weight_of_a_layer_is_the_second_factor_whatever_else_it_is_given() -> None:
    x, weight, mask = normal(48, 128), normal(32, 128), 1e6 * np.ones((48, 128))
    slots = [described(x, "input.0"), described(mask, "input.1"), described(weight, "parameters.weight")]
    output = described(x @ weight.T)
    assert natural_norm(call("linear", *slots, output), output) == pytest.approx(output.norm, rel=0.1)


def test_a_gradient_is_held_against_the_largest_gradient_that_came_in() -> None:
    gradients = [make_slot(norm=3.0), make_slot(norm=7.0), make_slot(norm=None), make_slot(norm=math.nan)]
    backward = call("matmul", direction="backward")
    assert natural_norm(backward, make_slot(shape=(2,)), gradients) == 7.0
    assert natural_norm(backward, make_slot(shape=(2,))) is None


def test_of_most_operations_no_natural_norm_is_known() -> None:
    x = described(normal(4, 4), "input.0")
    assert natural_norm(call("relu", x), x) is None
    assert natural_norm(call("matmul", x), x) is None, "one factor only"
    assert natural_norm(call("sum"), x) is None
    for op in ("matmul", "sum", "add"):
        unknown = [make_slot(slot=f"input.{place}", shape=(4, 4), is_input=True) for place in range(2)]
        assert natural_norm(call(op, *unknown), x) is None, op


def test_cancellation_is_how_much_smaller_the_larger_of_both_results_is_than_its_terms() -> None:
    both = make_slot(norm=2.0), make_slot(norm=4.0)
    assert cancellation(both, 12.0) == 3.0
    assert cancellation(both, 3.0) == 1.0
    assert cancellation(both, None) == cancellation(both, math.inf) == 1.0
    assert cancellation((make_slot(), make_slot()), 12.0) == 1.0
    assert cancellation((make_slot(norm=0.0), make_slot(norm=0.0)), 12.0) == math.inf


def test_what_goes_in_is_passed_on_16_times_and_cancellation_scales_it_all() -> None:
    output = make_slot(shape=(4,), norm=1.0)
    relu = call("relu", make_slot(slot="input.0", shape=(4,), is_input=True), output)
    rounding = round_off("torch.float32", 1.0)
    found = explain(output, output, (relu,), Noise(1e-5, 1e-4), 3.0, False)
    assert found.scale == 3.0
    assert found.tolerance == pytest.approx((3 * (rounding + 16e-5), 3 * (rounding + 16e-4)))


def test_what_is_many_operations_in_one_may_round_8_times_as_much() -> None:
    output = make_slot(shape=(4,), norm=1.0)
    relu, loss, compiled = call("relu", output), call("cross_entropy", output), call("f", output, prefix="Jit")
    plain = explain(output, output, (relu,), SILENCE, None, False).tolerance
    for calls, is_composite in (((loss,), False), ((compiled,), False), ((relu,), True), ((relu, relu), False)):
        found = explain(output, output, calls, SILENCE, None, is_composite).tolerance
        assert found == pytest.approx([8 * error for error in plain])


def test_many_terms_in_one_element_round_more() -> None:
    output = make_slot(shape=(2,), norm=1.0)
    total = call("sum", make_slot(slot="input.0", shape=(2, 1024), is_input=True), output)
    found = explain(output, output, (total,), SILENCE, None, False).tolerance
    assert found.norm == pytest.approx(round_off("torch.float32", 1024.0))


def test_noise_that_arrived_may_leave_twice_over_and_beside_a_smaller_rest() -> None:
    small = Explained(Noise(1e-7, 1e-3), scale=5.0)
    found = small.at_least(Noise(1e-4, 1e-6))
    assert found == Explained(Noise(2 * 5.0 * 1e-4, 1e-3), 5.0)
    endless = Explained(SILENCE, scale=math.inf).at_least(Noise(0.0, 1e-6))
    assert endless.tolerance == Noise(0.0, math.inf), "no error times an infinite scale is no error"


def test_an_exponential_turns_absolute_errors_into_relative_ones_up_to_half_of_the_digits() -> None:
    assert exponent_noise(Measurement("tensor", max_abs_error=1e-5)) == pytest.approx((2e-5 / 16, 2e-5 / 16))
    assert exponent_noise(Measurement("tensor", max_abs_error=64.0)) == pytest.approx((2.0**-12 / 16,) * 2)
    assert exponent_noise(Measurement("tensor")) == SILENCE
