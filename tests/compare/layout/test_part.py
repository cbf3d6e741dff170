"""What a rank has of a tensor is found by its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tensorprobe.compare.layout.part import Part, locate
from tests.compare.layout.steps import draw

WHOLE = draw(0, 6, 8)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (WHOLE, ""),
        (WHOLE.reshape(8, 6), ""),
        (WHOLE[2:4], "[2:4] along dimension 0"),
        (WHOLE[:, 4:], "[4:8] along dimension 1"),
        (WHOLE[:, [0, 1, 4, 5]], "[0:2, 4:6] along dimension 1"),
        (WHOLE[[3, 0, 5]], "[3:4, 0:1, 5:6] along dimension 0"),
        (WHOLE[::-1], "[5:6, 4:5, 3:4, 2:3, …] along dimension 0"),
        (WHOLE[3:, 4:], "[3:6] along dimension 0, [4:8] along dimension 1"),
        (np.concatenate([WHOLE[4:], np.zeros((1, 8))]), "[4:6] along dimension 0"),
        (WHOLE[2:4] * (1 + 1e-13), "[2:4] along dimension 0"),
    ],
)
def test_a_part_is_found_and_taken_again(part: np.ndarray, words: str) -> None:  # type: ignore[type-arg]
    found = locate(part, WHOLE, 1e-9)
    assert found is not None
    assert found.describe() == words
    np.testing.assert_allclose(found.take(WHOLE).reshape(-1), part.reshape(-1), rtol=1e-12)


@pytest.mark.parametrize("other", [draw(1, 6, 8), draw(1, 3, 8), WHOLE[2:4] * 1.001, WHOLE[2:4, 0], np.zeros((2, 8))])
def test_what_is_something_else_is_not_found(other: np.ndarray) -> None:  # type: ignore[type-arg]
    assert locate(other, WHOLE, 1e-9) is None


def test_the_gradient_of_padding_is_zero() -> None:
    part = Part(((0, np.array([4, -1])),))
    np.testing.assert_array_equal(part.take(WHOLE), [WHOLE[4], np.zeros(8)])
