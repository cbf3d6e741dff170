"""Ranks that are known by their statistics, written down: no process is needed to look at them."""

from __future__ import annotations

from collections.abc import Mapping

from tensorprobe.compare.layout.statistic.step import SummaryRank
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.true_step import Array
from tests.compare.layout.statistic.test_summary import summarize


def give(
    rank: RankStep, gradients: Mapping[str, Array] | None = None, parameters: Mapping[str, Array] | None = None
) -> SummaryRank:
    """What its values would be recorded as."""
    found = SummaryRank(rank, dtypes={"float32"})
    for value in rank.step.values:
        place = (value.maker or value.parameter or "", value.slot)
        found.summaries[value.number], found.places[value.number] = summarize(value.array), place
        found.at.setdefault(place, value.number)
    found.parameters.update({name: summarize(one) for name, one in {**rank.parameters, **(parameters or {})}.items()})
    found.gradients.update({name: summarize(array) for name, array in (gradients or {}).items()})
    return found
