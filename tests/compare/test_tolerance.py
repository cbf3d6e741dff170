"""How much error is allowed: by the tolerances that the user gave, or by what rounding and the inputs explain."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.measurement import Measurement
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import ValuePair
from tensorprobe.compare.tolerance import is_within_fixed
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
