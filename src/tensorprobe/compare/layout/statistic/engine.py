"""Compares two layouts of one step of which only statistics were recorded."""

from __future__ import annotations

from tensorprobe.compare.layout.result import make_layout_result
from tensorprobe.compare.layout.statistic.judge import judge_summaries
from tensorprobe.compare.layout.statistic.step import read_summary_ranks
from tensorprobe.compare.layout.statistic.verdict import SummaryWords
from tensorprobe.compare.result import Coverage, RankResult
from tensorprobe.compare.step import LayoutPair
from tensorprobe.run.step import read_run


def compare_layout_statistics(pair: LayoutPair) -> RankResult:
    """One step of both runs, by what their statistics say together."""
    judgement = judge_summaries(read_summary_ranks(pair.reference.ranks), read_summary_ranks(pair.candidate.ranks))
    runs = {rank.rank or 0: read_run(rank) for rank in pair.candidate.ranks}
    verdict = SummaryWords(judgement, runs).give_verdict()
    counts = [
        sum(len(one.rank.step.calls) for one in side.values()) for side in (judgement.reference, judgement.candidate)
    ]
    values = len(judgement.held) + len(judgement.gradients) + judgement.has_losses
    kinds = [*(one.kind for one in judgement.held), *(one.kind for one in judgement.gradients)]
    unknown = kinds.count("unknown")
    coverage = Coverage(counts[0], counts[1], 0, 0, values - unknown, values)  # no call is held against another
    return make_layout_result(pair, verdict, coverage)
