"""Which call is to blame, where the numbers could mislead: noise that is passed on, masks, models used twice in a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compare.recording import Recording
from tests.compare.test_engine import V, W, X, compare_edited, named, roles

RNG = np.random.default_rng(7)


def test_a_call_that_only_passes_on_what_cancellation_left_is_no_source(tmp_path: Path) -> None:
    """The gradient of a softmax cancels nearly to nothing; the view behind it returns the same noise."""
    large, small = X, X * np.float32(0.001)

    def program(run: Recording, noise: float = 0.0) -> None:
        a = run.api("Tensor.view", run.data(X), output=X.copy())
        run.api("Tensor.softmax", a, output=X.copy())
        rest = small + np.float32(noise) * small[::-1]
        gradient = run.backward("Tensor.softmax.0", run.data(large), rest)
        run.backward("Tensor.view.0", gradient, rest.copy())

    result = compare_edited(tmp_path, program, {"noise": 2e-5})
    assert result, result.verdict
    assert not compare_edited(tmp_path / "wrong", program, {"noise": 0.1})
