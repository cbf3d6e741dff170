"""Compares two runs whose steps were made by different numbers of processes."""

from __future__ import annotations

from collections import Counter

from tensorprobe.compare.layout.judge import LayoutJudgement, judge_layouts
from tensorprobe.compare.layout.verdict import LayoutWords
from tensorprobe.compare.result import Coverage, RankResult
from tensorprobe.compare.step import LayoutPair
from tensorprobe.run.step import read_run


def compare_layouts(pair: LayoutPair) -> RankResult:
    """One step of both runs, by what they mean."""
    judgement = judge_layouts(pair.reference.ranks, pair.candidate.ranks)
    runs = [{rank.rank or 0: read_run(rank) for rank in side.ranks} for side in (pair.reference, pair.candidate)]
    verdict = LayoutWords(judgement, runs[0], runs[1]).give_verdict()
    return RankResult(
        step=pair.step,
        reference_name=pair.reference_name,
        candidate_name=pair.candidate_name,
        calls=() if verdict.call is None else (verdict.call,),
        only_reference=(),
        only_candidate=(),
        verdict=verdict,
        others=(),
        coverage=_count_coverage(judgement),
        bases=Counter(),
        problems=tuple(
            problem for side in (pair.reference, pair.candidate) for rank in side.ranks for problem in rank.problems
        ),
    )


def _count_coverage(judgement: LayoutJudgement) -> Coverage:
    """A call counts as paired if it was executed again: what it computes is held against the other run by what comes of
    it."""
    counts = []
    for steps in (judgement.reference, judgement.candidate):
        coverages = [one.step.coverage for one in steps.values()]
        counts.append((sum(one.call_count for one in coverages), sum(one.replayed + one.random for one in coverages)))
    values = len(judgement.gradients) + judgement.has_loss
    return Coverage(counts[0][0], counts[1][0], counts[0][1], counts[1][1], values, values)
