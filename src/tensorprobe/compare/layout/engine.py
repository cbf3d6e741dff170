"""Compares two runs that share out their steps among processes in different ways."""

from __future__ import annotations

from dataclasses import replace

from tensorprobe.compare.layout.judge import LayoutJudgement, judge_layouts
from tensorprobe.compare.layout.result import make_layout_result
from tensorprobe.compare.layout.same_layout import find_other_layout
from tensorprobe.compare.layout.verdict import LayoutWords
from tensorprobe.compare.result import Coverage, RankResult
from tensorprobe.compare.step import LayoutPair
from tensorprobe.run.step import read_run

_DRIFTED = 0.5
"""By so much of its size may a weight differ that is still the same one."""


def compare_layouts(pair: LayoutPair) -> RankResult:
    """One step of both runs, by what they mean."""
    return _make_result(pair, judge_layouts(pair.reference.ranks, pair.candidate.ranks))


def compare_other_layouts(pair: LayoutPair) -> RankResult | None:
    """One step of two runs with the same number of ranks, by what they mean; None where each rank stands against its
    namesake, or where the weights of one run are not those of the other, in parts. Of one layout, too, what a kernel of
    one rank does wrong reaches the others: it is found where all are executed together."""
    reason = find_other_layout(pair.reference.ranks, pair.candidate.ranks)
    if reason is None:
        judgement = judge_layouts(pair.reference.ranks, pair.candidate.ranks, explains=False)
        return _make_result(pair, judgement) if judgement.is_equal and judgement.findings else None
    judgement = judge_layouts(pair.reference.ranks, pair.candidate.ranks)
    if any(stray.error is None or stray.error > _DRIFTED for stray in judgement.holdings.strays):
        return None
    result = _make_result(pair, judgement)
    evidence = (*result.verdict.evidence, f"compared as two layouts: {reason}")
    return replace(result, verdict=replace(result.verdict, evidence=evidence))


def _make_result(pair: LayoutPair, judgement: LayoutJudgement) -> RankResult:
    runs = [{rank.rank or 0: read_run(rank) for rank in side.ranks} for side in (pair.reference, pair.candidate)]
    verdict = LayoutWords(judgement, runs[0], runs[1]).give_verdict()
    return make_layout_result(pair, verdict, _count_coverage(judgement))


def _count_coverage(judgement: LayoutJudgement) -> Coverage:
    """A call counts as paired if it was executed again: what it computes is held against the other run by what comes of
    it."""
    counts = []
    for steps in (judgement.reference, judgement.candidate):
        coverages = [one.step.coverage for one in steps.values()]
        counts.append((sum(one.call_count for one in coverages), sum(one.replayed + one.random for one in coverages)))
    values = len(judgement.gradients) + judgement.has_loss
    return Coverage(counts[0][0], counts[1][0], counts[0][1], counts[1][1], values, values)
