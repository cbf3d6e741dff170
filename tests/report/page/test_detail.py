"""What a pair of tensors looks like on the page."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorprobe.report.page import detail, heat
from tensorprobe.report.page.detail import describe_array, describe_pair


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _describe(reference: Any, candidate: Any) -> dict[str, Any]:
    described = describe_pair(np.asarray(reference), np.asarray(candidate))
    json.dumps(described, allow_nan=False)  # strict JSON whatever goes in
    return described


def test_the_histograms_count_every_element_of_both_sides_and_of_their_difference() -> None:
    reference = _random(4, 8, 16)
    candidate = reference.copy()
    candidate[2, 3, 5] += 2.0

    drawn = _describe(reference, candidate)["histogram"]

    assert len(drawn["edges"]) == len(drawn["reference"]) + 1 == len(drawn["candidate"]) + 1
    assert sum(drawn["reference"]) == sum(drawn["candidate"]) == sum(drawn["difference"]) == 4 * 8 * 16
    assert drawn["difference_edges"][-1] == pytest.approx(2.0)
    assert drawn["difference"][-1] == 1
    expected, _ = np.histogram(candidate, bins=drawn["edges"])
    assert drawn["candidate"] == expected.tolist()


def test_the_heat_map_shows_the_slice_of_the_worst_element() -> None:
    reference = _random(4, 8, 16)
    candidate = reference.copy()
    candidate[2, 3, 5] += 2.0

    drawn = _describe(reference, candidate)["heat"]

    assert drawn["title"] == "[2, :, :] of 4 × 8 × 16"
    assert drawn["start"] == [0, 0]
    assert drawn["index"] == [2]
    assert np.shape(drawn["reference"]) == np.shape(drawn["candidate"]) == np.shape(drawn["difference"]) == (8, 16)
    assert drawn["difference"][3][5] == pytest.approx(2.0, rel=1e-4)
    assert np.count_nonzero(drawn["difference"]) == 1


def test_a_large_slice_is_reduced_to_64_by_64_and_one_wrong_element_stays_in_sight() -> None:
    reference = np.zeros((200, 100), np.float32)
    candidate = reference.copy()
    candidate[150, 71] = -3.0

    drawn = _describe(reference, candidate)["heat"]

    assert drawn["title"] == "[:, :] of 200 × 100; each cell is the largest of 4 × 2"
    assert np.shape(drawn["difference"]) == (50, 50)
    assert drawn["difference"][150 // 4][71 // 2] == -3.0
    assert np.count_nonzero(drawn["difference"]) == 1


def test_a_tensor_too_large_to_draw_is_sampled_and_shown_around_its_worst_element(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detail, "_DRAWN_ELEMENTS", 1000)
    monkeypatch.setattr(heat, "_WINDOW_ELEMENTS", 100)
    reference = _random(300, 400)
    candidate = reference.copy()
    candidate[200, 300] += 9.0

    described = _describe(reference, candidate)

    drawn = described["histogram"]
    assert drawn["sampled"].endswith(" of 120,000 elements")
    assert 0 < sum(drawn["reference"]) == sum(drawn["difference"]) <= 2000
    assert described["heat"]["title"] == "[195:205, 295:305] of 300 × 400"
    assert described["heat"]["start"] == [195, 295]
    assert described["heat"]["difference"][5][5] == pytest.approx(9.0, rel=1e-4)
    assert described["metrics"]["max_abs_error"] == pytest.approx(9.0, rel=1e-6)
    assert described["metrics"]["element_count"] == 120_000


def test_a_sample_takes_more_than_a_few_columns_of_a_wide_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "_DRAWN_ELEMENTS", 1000)
    columns = np.broadcast_to(np.arange(64, dtype=np.float32), (1000, 64))
    drawn = describe_array(columns)["histogram"]
    assert min(drawn["reference"]) > 0


def test_the_metrics_are_those_of_compare() -> None:
    metrics = _describe([1.0, 2.0], [1.0, 2.5])["metrics"]
    assert metrics["max_abs_error"] == 0.5
    assert metrics["worst_index"] == [1]
    assert metrics["is_equal"] is False
    assert "problem" not in metrics


def test_shapes_that_do_not_fit_leave_both_histograms_and_the_reason() -> None:
    described = _describe(np.ones(5), np.zeros(6))
    assert described["metrics"] == {"problem": "shape [5] against [6]"}
    assert described["heat"] is None
    assert sum(described["histogram"]["reference"]) == 5
    assert sum(described["histogram"]["candidate"]) == 6
    assert described["histogram"]["difference"] == described["histogram"]["difference_edges"] == []


def test_the_same_elements_in_another_layout_are_held_against_each_other() -> None:
    described = _describe(np.arange(6.0).reshape(2, 3), np.arange(6.0))
    assert described["metrics"]["is_equal"] is True
    assert described["metrics"]["shape"] == "[2, 3] against [6], compared in the order of the elements"


def test_nan_and_inf_are_counted_apart_and_shown_as_the_worst() -> None:
    described = _describe([math.nan, math.inf, -math.inf, 1.0, math.nan], [math.nan, math.inf, math.inf, 1.0, 2.0])
    assert described["histogram"]["not_finite"] == [4, 3]
    assert sum(described["histogram"]["reference"]) == 1
    assert described["heat"]["difference"] == [[0.0, 0.0, "Infinity", 0.0, "NaN"]]
    assert described["metrics"]["nan_only_reference"] == 1


def test_a_nan_is_not_hidden_by_the_numbers_of_its_cell() -> None:
    reference = np.ones((2, 128), np.float32)
    candidate = reference.copy()
    candidate[1, 9] = math.nan
    assert _describe(reference, candidate)["heat"]["candidate"][1][4] == "NaN"


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.float32(3), np.float32(4)),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.full(3, math.nan), np.full(3, math.nan)),
        (np.ones(3, ml_dtypes.bfloat16), np.ones(3, ml_dtypes.bfloat16)),
        (np.ones(3, ml_dtypes.float8_e4m3fn), np.zeros(3, ml_dtypes.float8_e5m2)),
        (np.array([True, False]), np.array([True, True])),
        (np.array([2**63 - 1, -(2**63)]), np.array([0, 1])),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)),
        (np.array([1 + 2j, 3]), np.array([1 + 2j, complex(math.nan, 1)])),
        (np.array([1e308, -1e308]), np.array([-1e308, 1e308])),
        (np.array([5e-324, 0.0]), np.array([0.0, 0.0])),
        (np.array([1.0, 1 + 2**-52]), np.array([1.0, 1.0])),
        (np.ones((2, 3), ">f4"), np.ones((3, 2), "<f4").T),
    ],
    ids=str,
)
def test_any_numbers_and_any_shape_are_described(reference: Any, candidate: Any) -> None:
    described = _describe(reference, candidate)
    drawn = described["histogram"]
    finite = [int(np.count_nonzero(np.isfinite(np.asarray(side).astype(complex)))) for side in (reference, candidate)]
    assert [sum(drawn["reference"]), sum(drawn["candidate"])] == finite
    assert (described["heat"] is None) == (np.size(reference) < 2)
    assert "problem" not in described["metrics"]


def test_complex_numbers_are_drawn_by_their_magnitude() -> None:
    drawn = _describe([3 + 4j, 0], [3 + 4j, 1j])
    assert drawn["histogram"]["of"] == "magnitude"
    assert drawn["heat"]["reference"] == [[5.0, 0.0]]
    assert drawn["heat"]["difference"] == [[0.0, 1.0]]


def test_what_is_no_number_is_not_drawn_and_says_so() -> None:
    described = _describe(["a"], ["b"])
    assert described["metrics"] == {"problem": "elements of the type <U1 are not compared"}
    assert described["histogram"]["edges"] == []
    assert described["heat"] is None


def test_one_tensor_alone_has_the_same_pictures_without_a_difference() -> None:
    described = describe_array(_random(8, 16))
    assert sum(described["histogram"]["reference"]) == 128
    assert described["histogram"]["candidate"] == described["histogram"]["difference"] == []
    assert np.shape(described["heat"]["reference"]) == (8, 16)
    assert described["heat"]["difference"] == []
    assert describe_array(np.array(["a"]))["metrics"] == {"problem": "elements of the type <U1 are not drawn"}
