"""What is said of one step of two layouts, as a result like any other."""

from __future__ import annotations

from collections import Counter

from tensorprobe.compare.result import Coverage, RankResult, Verdict
from tensorprobe.compare.step import LayoutPair


def make_layout_result(pair: LayoutPair, verdict: Verdict, coverage: Coverage) -> RankResult:
    return RankResult(
        step=pair.step,
        reference_name=pair.reference_name,
        candidate_name=pair.candidate_name,
        calls=() if verdict.call is None else (verdict.call,),
        only_reference=(),
        only_candidate=(),
        verdict=verdict,
        others=(),
        coverage=coverage,
        bases=Counter(),
        problems=tuple(
            problem for side in (pair.reference, pair.candidate) for rank in side.ranks for problem in rank.problems
        ),
    )
