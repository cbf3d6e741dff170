"""A value that the reference has, but not in this place."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.descent import CallPair, Descent
from tensorprobe.compare.layout.difference import Tracer
from tensorprobe.compare.layout.explanation import Explainer
from tensorprobe.compare.layout.relation import Relations
from tensorprobe.replay.rank_step import RankStep
from tests.compare.layout.steps import StepBuilder, draw

X, W = draw(0, 4, 6), draw(1, 6, 6)
ANGLES = np.array([[1.0], [0.8], [0.5], [0.1]])


def build(rank: int, rows: slice, angles: slice) -> RankStep:
    """Rows are turned by the angles of their places, and multiplied."""
    x, turns = X[rows], ANGLES[angles]
    builder = StepBuilder(rank)
    whole = builder.add_call("relu", [builder.add_leaf(x)], x)
    turned = builder.add_call("mul", [whole, builder.add_leaf(turns)], x * turns)
    product = builder.add_call("matmul", [turned, builder.add_leaf(W)], (x * turns) @ W)
    builder.add_call("sum", [product], np.array(((x * turns) @ W).sum()), is_root=True)
    return builder.build()


def test_a_product_with_one_is_traced_back_to_where_the_reference_has_another_factor() -> None:
    reference = {0: build(0, slice(0, 4), slice(0, 4))}
    candidate = {rank: build(rank, slice(rank, rank + 1), slice(0, 1)) for rank in range(4)}
    tracer = Tracer(candidate, Relations(reference, candidate, 1e-9))
    (beginning,) = tracer.find_beginnings()
    assert (beginning.call.op, beginning.ranks) == ("matmul", (1, 2, 3))  # x times 1 is in the reference: x
    found = Explainer(reference, candidate, tracer, 1e-9).explain(beginning)
    assert found.call is not None
    assert (found.kind, found.call.op, found.ranks) == ("entered", "mul", (1, 2, 3))
    assert "its input.0 is [1:2] along dimension 0" in found.because
    assert "its input.1 is [0:1] along dimension 0" in found.because


def test_it_goes_back_only_through_calls_that_do_the_same() -> None:
    reference, candidate = build(0, slice(0, 4), slice(0, 4)), build(1, slice(1, 2), slice(0, 1))
    pair = CallPair(candidate.step.calls["Torch.matmul.2.forward"], reference.step.calls["Torch.sum.3.forward"])
    assert Descent(candidate, reference, 1e-9).find_departure(pair)[0] is pair
