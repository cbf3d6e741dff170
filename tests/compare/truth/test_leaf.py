"""A table that one run reads and the other computes: is it the same one, rounded?"""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.truth.leaf import _assemble_prepared, find_movable, is_rounding_of
from tensorprobe.compare.truth.observable import observe
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue

BIAS = np.random.default_rng(0).normal(size=(4, 6))


def make_value(array: Array, maker: str | None, dtype: str = "float32") -> TrueValue:
    return TrueValue(0, array, dtype, maker, "input.0")


def is_taken(table: Array, computed: Array) -> bool:
    return is_rounding_of(make_value(table, None), make_value(computed, "Tensor.mul.0.forward"))


def test_a_table_that_the_other_run_computes_is_the_same_table() -> None:
    assert is_taken(BIAS.astype(np.float32).astype(np.float64), BIAS)


@pytest.mark.parametrize("masked", [False, True])
def test_another_table_is_not(masked: bool) -> None:
    computed = np.where(np.tri(4, 6, dtype=bool), BIAS, -np.inf) if masked else BIAS
    assert not is_taken(4 * BIAS, computed)


def test_a_mask_of_infinity_is_the_same_where_it_is_infinite_in_the_same_places() -> None:
    computed = np.where(np.tri(4, 6, dtype=bool), BIAS, -np.inf)
    assert is_taken(computed.astype(np.float32).astype(np.float64), computed)
    assert not is_taken(np.where(np.isinf(computed), -1e30, computed), computed)


def test_what_is_too_small_for_half_precision_is_rounded_to_the_next_number_there_is() -> None:
    numbers = np.array([1.0, 3e-6, 2e-8, 0.0], dtype=np.float32).astype(np.float64)
    half = numbers.astype(np.float16).astype(np.float64)
    assert is_rounding_of(make_value(half, None, "float16"), make_value(numbers, None))
    assert not is_rounding_of(make_value(half + 1e-6, None, "float16"), make_value(numbers, None))


@pytest.mark.filterwarnings("error")
def test_a_mask_with_infinity_is_not_put_together_of_anything() -> None:
    numbers = np.random.default_rng(1).standard_normal((2, 6))
    mask = np.where(np.tri(4, 6, dtype=bool), 0.0, -np.inf)
    parts = [make_value(one, "Tensor.mul.0.forward") for one in (numbers, numbers + 1, mask[:2])]
    assert _assemble_prepared(make_value(mask, None), parts) is None


def test_data_is_put_together_of_what_the_other_run_computes_in_parts() -> None:
    exact = np.random.default_rng(1).standard_normal((4, 6))
    read = exact.astype(np.float32).astype(np.float64) * (1 + 1e-7)
    parts = [make_value(one, "Tensor.mul.0.forward") for one in (exact[:2], exact[2:])]
    found = _assemble_prepared(make_value(read, None), parts)
    assert found is not None and np.array_equal(found, exact)
    assert _assemble_prepared(make_value(read + 1e-4, None), parts) is None


@pytest.mark.parametrize(
    ("row", "gradient", "is_moved"),
    [(0.0, 0.0, False), (0.0, 1.0, True), (1.0, 0.0, True)],
    ids=["idle", "used", "set"],
)
def test_a_table_with_a_row_that_stays_zero_is_not_moved(row: float, gradient: float, is_moved: bool) -> None:
    """One run multiplies what stands for padding by zero, the other trusts that it is zero: both are right."""
    steps = []
    for name in ("reference", "candidate"):
        table = TrueValue(0, BIAS.copy(), "float32", None, "input.0", "table", "table", is_trained=True)
        table.gradient = np.ones_like(BIAS)
        table.array[0], table.gradient[0] = row * BIAS[0], gradient
        steps.append(TrueStep(name, {}, [table], Coverage()))
    counterparts = Counterparts(*steps)
    assert find_movable(counterparts, observe(counterparts))["candidate"] == ({"table"} if is_moved else set())
