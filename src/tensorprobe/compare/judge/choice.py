"""The verdict of a whole comparison, out of those of its steps and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorprobe.compare.result import NO_ANSWER, RankResult, Verdict
from tensorprobe.model.count import count_noun

_FIRST_KINDS = (("unequal start",), ("source", "entered", "framework", "random", "missing"), ("discontinuity", "drift"))


def has_source(result: RankResult) -> bool:
    """Does it differ?"""
    return result.verdict.kind not in ("agree", *NO_ANSWER)


def choose_verdict(results: Sequence[RankResult], allows_uncompared: bool) -> Verdict:
    """The earliest over all steps and ranks; of one step, the rank whose difference arose first."""
    if not results:
        return Verdict("not compared", "Nothing could be compared: the two dumps have no step and rank in common.")
    for kinds in _FIRST_KINDS:
        differing = [result for result in results if result.verdict.kind in kinds]
        if differing:
            first_step = min(result.step or 0 for result in results if has_source(result))
            early = [result for result in differing if (result.step or 0) == first_step]
            if early:
                return _locate(min(early, key=_arisen), results)
    for result in results:
        if has_source(result):
            return _locate(result, results)
    agreeing = [result for result in results if result.verdict.kind == "agree"]
    unanswered = [result for result in results if result.verdict.kind in NO_ANSWER and not _is_empty(result)]
    if not agreeing:
        return _locate((unanswered or results)[0], results)
    if allows_uncompared:  # what is another program is not excused
        unanswered = [result for result in unanswered if result.verdict.kind == "unrelated"]
    if unanswered:
        return _word_unanswered(unanswered[0], agreeing, results)
    return agreeing[0].verdict if len(results) == 1 else _word_agreement(agreeing, results)


def _word_unanswered(first: RankResult, agreeing: Sequence[RankResult], results: Sequence[RankResult]) -> Verdict:
    """An agreement of the others says nothing of the one that could not be compared."""
    verdict = _locate(first, results)
    headline = f"{verdict.headline} {len(agreeing):,} of {len(results):,} steps and ranks agree."
    return replace(verdict, kind="incomplete", headline=headline)


def _word_agreement(agreeing: Sequence[RankResult], results: Sequence[RankResult]) -> Verdict:
    calls = sum(result.coverage.paired_reference for result in agreeing)
    values, known = (
        sum(getattr(result.coverage, name) for result in agreeing) for name in ("values", "compared_values")
    )
    words = f"{len(agreeing):,} of {len(results):,} steps and ranks, "
    words += f"{count_noun(calls, 'call')}, {count_noun(values, 'value')}"
    if known < values:
        words += f", of which {values - known:,} could not be compared"
    recorded = sum(result.tally.fallbacks.total() for result in agreeing)
    if recorded:
        words += f"; {recorded:,} only by their records, because their files cannot be compared"
    return replace(agreeing[0].verdict, headline=f"The runs agree: {words}.", step=None, rank_name=None)


def _is_empty(result: RankResult) -> bool:
    """Nothing was recorded there, in neither run. One that cannot be read is not empty: nobody knows what it holds."""
    return not (result.coverage.reference_calls or result.coverage.candidate_calls or result.problems)


def _arisen(result: RankResult) -> int:
    """When the difference arose, as far as the runs of two processes can be held side by side: by their calls."""
    call = result.verdict.call
    if call is not None:
        return call.reference[-1].position
    return min((suspect.position for suspect in result.verdict.suspects), default=0)


def _locate(result: RankResult, results: Sequence[RankResult]) -> Verdict:
    """Its verdict, and where that is, if there are several."""
    if len(results) == 1:
        return result.verdict
    return replace(result.verdict, headline=f"{result.verdict.headline.removesuffix('.')} ({result.reference_name}).")
