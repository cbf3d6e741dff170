"""Two layouts by their statistics: where they begin to differ, and what rounding may hide."""

from __future__ import annotations

import numpy as np

from tensorprobe.compare.layout.statistic.judge import SummaryJudgement, judge_summaries
from tensorprobe.compare.layout.statistic.step import SummaryRank
from tests.compare.layout.statistic.ranks import give
from tests.compare.layout.steps import StepBuilder, draw

X, W, R = draw(0, 32, 6), draw(1, 6, 6), draw(2, 32, 6) + 3


def build(rank: int = 0, first: float = 1.0, second: float = 1.0, dtype: str = "float32") -> SummaryRank:
    """A chain of two products and a sum; each product may be too large by a factor."""
    builder = StepBuilder(rank)
    product = X @ W * first
    number = builder.add_call("matmul", [builder.add_leaf(X), builder.add_leaf(W, "weight")], product)
    total = (product + R) * second
    number = builder.add_call("add", [number, builder.add_leaf(R)], total)
    loss = np.array(np.square(total).mean())
    builder.add_call("mean", [number], loss, is_root=True)
    found = give(builder.build())
    found.dtypes = {dtype}
    return found


def judge(**options: object) -> SummaryJudgement:
    dtype = str(options.get("dtype", "float32"))
    return judge_summaries({0: build(dtype=dtype)}, {rank: build(rank, **options) for rank in (0, 1)})  # type: ignore[arg-type]


def test_the_same_on_all_ranks_agrees() -> None:
    found = judge()
    assert found.loss is not None and not found.strays and not found.beginnings


def test_the_first_call_whose_result_is_another_is_named() -> None:
    found = judge(second=1.1)
    ((beginning, kind, because),) = found.beginnings
    assert (beginning.call.name, beginning.ranks, kind) == ("Torch.add.1.forward", (0, 1), "source")
    assert because.startswith("its inputs have the statistics of the reference")
    assert found.last is None


def test_what_the_room_of_bfloat16_hides_is_found_with_less_of_it() -> None:
    found = judge(second=1.025, dtype="bfloat16")
    assert found.loss is None and found.last is not None
    ((beginning, *_),) = found.beginnings
    assert (beginning.call.name, found.last.call.name) == ("Torch.add.1.forward", "Torch.mean.2.forward")


def test_a_loss_that_is_another_by_far_is_not_looked_for_in_rounding() -> None:
    reference, candidate = {0: build(dtype="bfloat16")}, {0: build(dtype="bfloat16"), 1: build(1, dtype="bfloat16")}
    for one in candidate.values():
        for root in one.rank.step.roots:
            root.array = root.array * 2
            one.summaries[root.number] = reference[0].summaries[root.number]
    found = judge_summaries(reference, candidate)
    assert (found.loss, found.beginnings, found.last) == (None, [], None)
