"""The status of one pair of tensors: equal, close or different, and why."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tensorprobe.compare.judge.status import is_explained_but_large, is_same_value, leave_out, settle
from tensorprobe.compare.judge.tolerance import Explained
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.noise import Noise
from tensorprobe.compare.measure.statistic_measure import equal_measurement
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import ValuePair
from tensorprobe.store.slot import PlainSlot
from tests.compare.tensor_slot import make_slot

JUDGED = CompareOptions()
FIXED = CompareOptions(rtol=0.1)
HALF_OF_FLOAT32, HALF_OF_BFLOAT16 = 2.0**-12, 2.0**-4


def pair(measurement: Measurement, dtypes: tuple[str, str] = ("torch.float32", "torch.float32")) -> ValuePair:
    first, second = (make_slot(dtype=dtype, shape=(4,), max=1.0, min=0.0) for dtype in dtypes)
    return ValuePair(first, second, "not comparable", measurement)


def settled(measurement: Measurement, allowed: float, options: CompareOptions = JUDGED, **changes: Any) -> ValuePair:
    value = pair(measurement)
    settle(value, Explained(Noise(allowed, allowed), changes.get("scale", 1.0)), options, changes.get("coarsest"))
    return value


def error(norm: float, peak: float | None = None) -> Measurement:
    return Measurement("tensor", is_equal=False, relative_l2=norm, relative_max=norm if peak is None else peak)


def test_an_error_within_what_is_allowed_is_close_and_beyond_it_different() -> None:
    assert settled(error(1e-5), 1e-5).status == "close"
    assert settled(error(1e-5, 2e-5), 1e-5).status == "different"
    assert settled(error(2e-5, 1e-5), 1e-5).status == "different"
    value = settled(error(1e-6, 2e-5), 1e-5)
    assert (value.error, value.tolerance) == (2e-5, 1e-5), "the measure that exceeds its tolerance most"


def test_what_was_not_recorded_is_not_comparable_but_two_empty_tensors_are_equal() -> None:
    value = settled(Measurement("structure", element_count=4), 1.0)
    assert (value.status, value.reason) == ("not comparable", "no values were recorded")
    assert settled(equal_measurement("structure", 0, 0.0), 0.0).status == "equal"


def test_a_file_that_cannot_be_read_is_not_comparable_and_says_why() -> None:
    value = settled(Measurement("tensor", problem="x.pt is cut off"), 1.0)
    assert (value.status, value.reason) == ("not comparable", "x.pt is cut off")


def test_more_than_half_of_the_digits_are_different_whatever_explains_them() -> None:
    assert settled(error(0.9 * HALF_OF_FLOAT32), 1.0).status == "close"
    large = settled(error(1.1 * HALF_OF_FLOAT32), 1.0)
    assert large.status == "different" and is_explained_but_large(large)
    assert settled(error(1.1 * HALF_OF_FLOAT32), 1.0, scale=2.0).status == "close", "of the terms, not of their sum"
    assert not is_explained_but_large(settled(error(1.1 * HALF_OF_FLOAT32), 1e-5)), "that is not explained at all"


def test_the_coarsest_dtype_of_the_run_says_how_many_digits_there_are() -> None:
    assert settled(error(0.9 * HALF_OF_BFLOAT16), 1.0, coarsest=2.0**-8).status == "close"
    assert settled(error(1.1 * HALF_OF_BFLOAT16), 1.0, coarsest=2.0**-8).status == "different"
    assert settled(error(1.1 * HALF_OF_FLOAT32), 1.0, coarsest=2.0**-53).status == "different", "never a finer one"


def test_given_tolerances_decide_alone_except_over_checksums() -> None:
    near = Measurement("tensor", is_equal=False, allclose=True, relative_l2=1.0, relative_max=1.0)
    value = settled(near, 0.0, FIXED)
    assert (value.status, value.tolerance) == ("close", None)
    assert settled(Measurement("checksum", is_equal=False), 0.0, FIXED).status == "different"


@pytest.mark.parametrize(
    ("dtypes", "is_across", "status"),
    [
        (("torch.int64", "Int32"), True, "close"),
        (("torch.int64", "torch.int32"), False, "different"),
        (("torch.float32", "Float16"), True, "different"),
        (("torch.int64", "Float32"), True, "different"),
        (("torch.float32", "Float32"), True, "close"),
        (("torch.float32", ""), False, "close"),
    ],
)
def test_another_dtype_is_a_difference_but_for_integers_of_two_frameworks(
    dtypes: tuple[str, str], is_across: bool, status: str
) -> None:
    value = pair(error(1e-7), dtypes)
    value.is_across_frameworks = is_across
    settle(value, Explained(Noise(1.0, 1.0), 1.0), JUDGED)
    assert value.status == status
    assert (" where the reference has " in value.reason) == (status == "different")


def test_what_is_left_out_is_no_mismatch() -> None:
    value = pair(error(1.0))
    value.is_mismatch = True
    leave_out(value, "undefined memory")
    assert (value.status, value.reason, value.is_bad) == ("not comparable", "undefined memory", False)


def test_an_input_is_an_output_when_numbers_and_errors_are_the_same() -> None:
    one = Measurement("tensor", is_equal=False, relative_l2=0.1, max_abs_error=0.5)
    assert is_same_value(pair(one), pair(Measurement("tensor", is_equal=False, relative_l2=0.1, max_abs_error=0.5)))
    assert not is_same_value(pair(one), pair(Measurement("tensor", is_equal=False, relative_l2=0.2, max_abs_error=0.5)))
    assert not is_same_value(pair(one), pair(Measurement("tensor", is_equal=True, relative_l2=0.1, max_abs_error=0.5)))
    other = pair(Measurement("tensor", is_equal=False, relative_l2=0.1, max_abs_error=0.5))
    other.reference = make_slot(shape=(4,), max=2.0, min=0.0)
    assert not is_same_value(pair(one), other)
    other.measurement = one
    assert is_same_value(pair(one), other), "one measurement is one pair of tensors"
    other.measurement = None
    assert not is_same_value(pair(one), other) and not is_same_value(other, pair(one))


def test_a_tensor_may_stand_against_a_number() -> None:
    value = pair(Measurement("tensor", is_equal=False, relative_l2=0.1))
    value.reference = PlainSlot("input.0", "float", math.pi)
    assert not is_same_value(value, pair(Measurement("tensor", is_equal=False, relative_l2=0.1)))
    assert not is_explained_but_large(value)
