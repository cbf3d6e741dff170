"""What a pair of calls is said to be, and why: by its errors, its arguments, and what went into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compare.recording import Recording
from tests.compare.test_engine import X, compared, named, roles


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_call_that_raised_says_in_which_run(tmp_path: Path, side: str) -> None:
    runs = {"reference": Recording(), "candidate": Recording()}
    for name, run in runs.items():
        fields = {"failed": "RuntimeError: no kernel"} if name == side else {}
        run.api("Torch.add", run.data(X), 1, output=None if fields else X + 1, fields=fields)
    result = compared(tmp_path, runs["reference"], runs["candidate"])
    assert f"it raised an error in the {side} only: RuntimeError: no kernel" in result.verdict.headline


@pytest.mark.parametrize(
    ("side", "words"),
    [
        ("reference", "called with no strength where the reference had 0.5"),
        ("candidate", "called with strength=0.5 where the reference gave none"),
    ],
)
def test_an_argument_that_only_one_call_was_given_is_named(tmp_path: Path, side: str, words: str) -> None:
    runs = {"reference": Recording(), "candidate": Recording()}
    for name, run in runs.items():
        factor = 0.5 if name == side else 1.0
        kwargs = {"strength": factor} if name == side else {}
        run.api("Functional.sharpen", run.data(X), kwargs=kwargs, output=X * np.float32(factor))
    result = compared(tmp_path, runs["reference"], runs["candidate"])
    assert result.verdict.kind == "entered"
    assert words in result.verdict.headline


def test_what_follows_a_tensor_of_another_shape_is_propagated_although_that_has_no_error(tmp_path: Path) -> None:
    runs = Recording(), Recording()
    for run, rows in zip(runs, (4, 3), strict=True):
        part = run.api("Tensor.narrow", run.data(X), output=X[:rows])
        run.api("Tensor.sum", part, output=X[:rows].sum())
    result = compared(tmp_path, *runs)
    assert named(result) == "Tensor.narrow.0.forward"
    assert roles(result)["Tensor.sum.0.forward"] == "propagated"


def test_an_error_that_grows_more_than_what_goes_in_explains_is_drift(tmp_path: Path) -> None:
    runs = Recording(), Recording()
    for run, first, second in zip(runs, (0.0, 1e-3), (0.0, 0.5), strict=True):
        a = run.api("Functional.relu", run.data(X), output=X + np.float32(first))
        b = run.api("Tensor.neg", a, output=-X * np.float32(1 + second))
        run.api("Tensor.abs", b, output=X * np.float32(1 + second))
    result = compared(tmp_path, *runs)
    assert roles(result) == {
        "Functional.relu.0.forward": "source",
        "Tensor.neg.0.forward": "drift",
        "Tensor.abs.0.forward": "propagated",
    }
