"""A run that computes in another dtype as a whole, and one that casts a single call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.judge.other_precision import find_other_precision
from tensorprobe.run.step import Run
from tests.compare.judge.sketched_recording import SketchedRecording

RANDOM = np.random.default_rng(0)
X, W = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 8)))


def record(folder: Path, *dtypes: Any) -> Run:
    """Linear layers, one for each dtype, and a norm that is always in float32."""
    run = SketchedRecording()
    x, weight = run.data(X), run.parameter("weight", W)
    for dtype in dtypes:
        x = run.api("Functional.linear", x, weight, output=(x.array.astype(np.float32) @ W.T).astype(dtype))
    run.api("Functional.layer_norm", x, output=x.array.astype(np.float32) * 2)
    return run.read(folder)


FULL, HALF = (np.float32, np.float32, np.float32), (np.float16, np.float16, np.float16)


def test_what_most_products_are_in_is_the_precision_of_a_run(tmp_path: Path) -> None:
    found = find_other_precision(record(tmp_path / "r", *FULL), record(tmp_path / "c", *HALF))
    assert str(found) == "the candidate computes in float16, and the reference in float32"
    reverse = find_other_precision(record(tmp_path / "a", *HALF), record(tmp_path / "b", *FULL))
    assert str(reverse) == "the candidate computes in float32, and the reference in float16"


@pytest.mark.parametrize("other", [FULL, (np.float32, np.float16, np.float32)], ids=["none", "one of three"])
def test_a_cast_of_single_calls_is_no_other_precision(other: tuple[Any, ...], tmp_path: Path) -> None:
    assert find_other_precision(record(tmp_path / "r", *FULL), record(tmp_path / "c", *other)) is None


def test_one_product_alone_is_a_cast(tmp_path: Path) -> None:
    assert find_other_precision(record(tmp_path / "r", np.float32), record(tmp_path / "c", np.float16)) is None


def test_nothing_is_known_without_products(tmp_path: Path) -> None:
    assert find_other_precision(record(tmp_path / "r", *FULL), record(tmp_path / "c")) is None
