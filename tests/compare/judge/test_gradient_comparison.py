"""The gradients of two programs that are written differently, by their statistics."""

from __future__ import annotations

from tensorprobe.compare.judge.gradient_comparison import GradientComparison, _Gradient
from tests.compare.tensor_slot import make_slot


def gradient(norm: float, *shape: int) -> _Gradient:
    """Of a parameter of which nothing more is known."""
    return _Gradient(None, (make_slot(shape=shape, norm=norm, max=norm / 2, min=-norm / 2, mean=0.0),))


SAME = [gradient(float(norm), 5, norm) for norm in range(1, 6)]
JOINED = [gradient(3.0, 48, 16)]
APART = [gradient(norm, 16, 16) for norm in (1.0, 2.0, 2.0)]


def test_joined_parameters_leave_gradients_that_the_other_run_has_not() -> None:
    found = GradientComparison([*SAME, *JOINED], [*SAME, *APART], 1e-5).agree(1e-5)
    assert found is not None and found.count == len(SAME)


def test_gradients_of_the_same_sizes_are_of_the_same_parameters_and_differ() -> None:
    others = [gradient(norm, 16, 16) for norm in (1.0, 1.0, 1.0)]
    assert GradientComparison([*SAME, *others], [*SAME, *APART], 1e-5).agree(1e-5) is None
