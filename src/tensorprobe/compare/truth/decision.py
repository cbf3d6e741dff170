"""Which of two answers is given: that of truth, or that of the growth of errors, which is there already."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tensorprobe.compare.filtered_run import filter_alike
from tensorprobe.compare.judge.evidence import Finding, describe_values
from tensorprobe.compare.judge.kept_state import keeps_otherwise
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.judge.uncompared import contradicts_record, is_unfinished
from tensorprobe.compare.judge.verdict import make_result, own_tensors
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.match.proof import Proof
from tensorprobe.compare.measure.statistic_measure import measure_statistics
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import CallResult, ValuePair, Verdict
from tensorprobe.compare.step import RankPair
from tensorprobe.compare.truth.call_match import match_calls
from tensorprobe.compare.truth.judgement import SIDES, Judgement, find_obstacle
from tensorprobe.compare.truth.lending import lend_leaves
from tensorprobe.compare.truth.movement import EarlierStep, Movement, find_moved_otherwise, find_unmoved
from tensorprobe.compare.truth.recorded_error import find_recorded_errors
from tensorprobe.compare.truth.saved_value import has_unseen_difference
from tensorprobe.compare.truth.settlement import is_same_value, settle_pairs
from tensorprobe.compare.truth.start import Origins
from tensorprobe.compare.truth.update_call import find_update_calls
from tensorprobe.compare.truth.verdict import TruthWords
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.count import count_noun
from tensorprobe.replay import NO_TORCH
from tensorprobe.replay.true_step import UNITS, TrueStep, TrueValue
from tensorprobe.run.call import Call
from tensorprobe.run.leaf import WRITTEN
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.slot import TensorSlot

logger = logging.getLogger("tensorprobe")
_NOT_COMPARED = (
    "the earlier steps were not compared: the parameters may differ only by the rounding of their updates; compare "
    "these steps too to find out"
)
_NOT_SHARED = (
    "both runs recorded statistics only, and by these they do not start from the same values (different data, a mask "
    'or a table that only one of them has, or parameters that changed): record both with task "replay" or "tensor"'
)


@dataclass(frozen=True)
class _Attempt:
    """To judge one step by truth."""

    pair: RankPair
    judgement: Judgement | None
    obstacle: str
    """Why there is none, or why it says nothing."""


class TruthDecision:
    """The steps of one process, one after the other."""

    def __init__(self, options: CompareOptions) -> None:
        self._options = options
        self._earlier: EarlierStep | None = None
        self._unjudged: RankPair | None = None
        """The step before, if all of it was equal, bit for bit."""
        self._attempt: _Attempt | None = None

    def prove(self, pair: RankPair, runs: tuple[Run, Run]) -> Proof:
        """Which calls are the same, where their names do not say it and truth does."""
        names = [[call.name for call in run.calls] for run in runs]
        is_complete = pair.reference.is_complete and pair.candidate.is_complete
        if not self._is_wanted or not is_complete or names[0] == names[1]:
            return Proof()
        attempt = self._judge(pair, runs)
        judgement = attempt.judgement
        if judgement is None or attempt.obstacle:
            return Proof()
        return match_calls(judgement.counterparts, judgement.is_equal and not judgement.gaps)

    @property
    def _is_wanted(self) -> bool:
        return self._options.by != "growth" and not self._options.has_fixed_tolerance

    def _judge(self, pair: RankPair, runs: tuple[Run, Run]) -> _Attempt:
        if self._attempt is None or self._attempt.pair is not pair:
            self._attempt = self._try_to_judge(pair, runs)
        return self._attempt

    def _try_to_judge(self, pair: RankPair, runs: tuple[Run, Run]) -> _Attempt:
        runs = lend_leaves(*runs, draws_any=self._options.by == "truth")
        obstacle = find_obstacle(*runs)
        if obstacle is not None and _could_be_lent(runs):
            obstacle = _NOT_SHARED
        if obstacle is not None:
            if self._options.by == "auto" and obstacle == NO_TORCH:
                logger.warning("judged by how errors grow, not by truth: %s", obstacle)
            return _Attempt(pair, None, obstacle)
        from tensorprobe.compare.truth.judge import judge_by_truth  # needs PyTorch

        try:
            self._catch_up()
            judgement = judge_by_truth(*runs, None if self._earlier is None else self._earlier.origins)
        except DumpError as error:  # it is not all there, or too large for the memory of this machine
            if self._options.by == "auto":
                logger.warning("judged by how errors grow, not by truth: %s", error)
            return _Attempt(pair, None, str(error))
        return _Attempt(pair, judgement, judgement.obstacle or "")

    def _catch_up(self) -> None:
        """What does the step before leave for this one to be judged by, though there was nothing to judge in it?"""
        pair, self._unjudged = self._unjudged, None
        if pair is None:
            return
        runs = filter_alike(read_run(pair.reference), read_run(pair.candidate))
        self._keep(self._try_to_judge(pair, runs).judgement)

    def _keep(self, judgement: Judgement | None) -> None:
        if judgement is not None:
            self._earlier = _remember(judgement, {} if self._earlier is None else self._earlier.origins)

    def decide(self, pair: RankPair, runs: tuple[Run, Run], finding: Finding, grown: Verdict) -> Verdict:
        """The verdict by what the runs mean, or `grown`, by how their error grows, where that is to stay."""
        if not self._is_wanted or contradicts_record(finding):
            return grown
        is_judged = self._attempt is not None and self._attempt.pair is pair
        if grown.kind in ("unrelated", "not compared") and not (is_judged and self._has_same_parameters()):
            return grown
        if not is_judged and not _is_in_question(grown, finding):
            self._unjudged = pair
            return grown
        if grown.kind == "incomplete" and not (pair.reference.is_complete and pair.candidate.is_complete):
            return grown
        attempt = self._judge(pair, runs)
        if attempt.judgement is not None:
            verdict = grown if attempt.obstacle else self._choose(attempt.judgement, runs, finding, grown)
            self._keep(attempt.judgement)
            if not attempt.obstacle:
                return verdict
        if self._options.by == "truth":
            raise UsageError(f"the runs cannot be compared by truth: {attempt.obstacle}")
        if attempt.judgement is not None:
            grown = replace(grown, evidence=(*grown.evidence, f"not judged by truth: {attempt.obstacle}"))
        return grown

    def end_step(self) -> None:
        """Frees its memory: there may be many processes."""
        self._attempt = None

    def judged_with(self, pair: RankPair) -> Literal["nothing", "recorded numbers", "drawn numbers"]:
        """What this step was executed again with."""
        judgement = self._find_judgement(pair)
        if judgement is None:
            return "nothing"
        return "drawn numbers" if judgement.is_drawn else "recorded numbers"

    def names_argument(self, pair: RankPair) -> bool:
        """Was this step judged by truth, and is the first difference that a call has other arguments?"""
        judgement = self._find_judgement(pair)
        return judgement is not None and _calls_otherwise(judgement)

    def _find_judgement(self, pair: RankPair) -> Judgement | None:
        """That of this step; None where it was not executed again, or that says nothing."""
        attempt = self._attempt
        return None if attempt is None or attempt.pair is not pair or attempt.obstacle else attempt.judgement

    def find_errors(self, pair: RankPair, runs: tuple[Run, Run]) -> Mapping[str, Mapping[str, float]]:
        """For each side, how far the results of its calls are from their truth, by the calls' names; nothing where the
        step was not executed again."""
        judgement = self._find_judgement(pair)
        return {} if judgement is None else find_recorded_errors(judgement, dict(zip(SIDES, runs, strict=True)))

    def _has_same_parameters(self) -> bool:
        """Two programs that start from the same parameters are one, however differently they are written."""
        judgement = None if self._attempt is None else self._attempt.judgement
        if judgement is None:
            return False
        observed = judgement.observables
        return len(observed.gradients) > len(observed.unpaired_gradients)

    def _choose(self, judgement: Judgement, runs: tuple[Run, Run], finding: Finding, grown: Verdict) -> Verdict:
        if grown.kind != "agree":  # what was recorded differs by more than rounding: which of the two is wrong?
            judgement.look_closer()
        elif judgement.coarsest >= UNITS["float16"]:  # a mistake may be no larger than rounding
            judgement.look_closer(only_sums=True)
        if judgement.borrowers and _is_told_by_statistics(grown, judgement, finding):
            return grown
        is_unclear = not judgement.is_equal and not judgement.differences
        if judgement.is_equal and judgement.gaps and not judgement.observables.losses:
            is_unclear = True  # the results that nobody takes are what was recorded
        if is_unclear:
            return grown
        is_silent = judgement.is_equal and not judgement.differences
        if is_silent and grown.kind == "framework" and not _is_refuted(grown, judgement):
            return grown  # what an optimizer does is no observable of this step
        is_state = grown.kind == "entered" and (_writes_otherwise(grown, judgement) or _finds_otherwise(grown, finding))
        if judgement.is_equal and is_state:
            return grown  # nor is what a call writes for the next step, such as running statistics
        if grown.kind == "incomplete" and (judgement.gaps or not (judgement.is_equal or judgement.updates)):
            return grown
        is_alarm = judgement.is_equal and grown.kind in ("source", "entered")
        if is_alarm and has_unseen_difference(finding.pairs, judgement):
            return grown
        if judgement.unequal and judgement.is_equal and self._earlier is not None:
            moved = find_moved_otherwise(judgement.unequal, judgement.steps, self._earlier, judgement.coarsest)
            if moved:
                return _word_moved(moved, self._earlier, dict(zip(SIDES, runs, strict=True)))
        verdict = TruthWords(judgement, *runs).give_verdict()
        early = [side for side, run in zip(SIDES, runs, strict=True) if is_unfinished(run.rank)]
        if verdict.kind == "agree" and early:
            if grown.kind == "agree":
                return grown  # which says so
            told = f"as far as the {early[0]} goes, which ended early; there may be gradients that it did not record"
            verdict = replace(verdict, evidence=(told, *verdict.evidence))
        if verdict.kind == "unequal start" and self._earlier is None and (runs[0].rank.step or 0) > 0:
            verdict = replace(verdict, evidence=(*verdict.evidence[:1], _NOT_COMPARED, *verdict.evidence[1:]))
        calls = (*verdict.call.reference, *verdict.call.candidate) if verdict.call is not None else ()
        settle_pairs(finding.pairs, judgement, {call.name for call in calls})
        if verdict.kind == "agree" and _has_no_effect(grown, judgement):
            assert grown.call is not None
            name = grown.call.candidate[-1].name
            told = f"{name} computes something different ({grown.call.because}), with no effect on these results"
            verdict = replace(verdict, evidence=(told, *verdict.evidence))
        is_inside = any(one.is_inside for one in judgement.differences[:1])
        return verdict if is_inside else _add_values(verdict, finding)


def _could_be_lent(runs: Sequence[Run]) -> bool:
    """Is it for want of common numbers alone that nothing was lent to them? Both have the calls."""
    headers = [run.rank.header for run in runs]
    return all(one.get("task") == "statistics" and one.get("level") not in ("L0", "api_dump") for one in headers)


def _word_moved(moved: Sequence[Movement], earlier: EarlierStep, runs: Mapping[str, Run]) -> Verdict:
    others = f" and {count_noun(len(moved) - 1, 'other')} were" if len(moved) > 1 else " was"
    headline = (
        f"The runs diverge between the steps: {moved[0].name}{others} updated differently. The program of this step is "
        "the same."
    )
    evidence = [f"the parameters differ by {moved[0].share:.1%} of the update"]
    factors = [one.factor for one in moved]
    if factors[0] is not None:
        is_one = all(one is not None and np.isclose(one, factors[0], rtol=1e-3) for one in factors)
        evidence.append(
            f"{'they all' if is_one else moved[0].name} moved {factors[0]:.5g} times as far as in the reference, in "
            "the same direction"
        )
    if earlier.has_same_updates:
        evidence.append(
            "without rounding, both runs make the same update in the previous step: in one of them a call computes a "
            "wrong result (`tensorprobe truth` of that step names it), or something unrecorded changes the parameters"
        )
    origins = earlier.origins.get(moved[0].name, ())
    names = (next((one.parameter for one in origins), None), moved[0].name)
    update = find_update_calls(runs, dict(zip(SIDES, names, strict=True)))
    return Verdict("drift", headline, (*update.lines, *evidence), call=update.result)


def _remember(judgement: Judgement, origins: Origins) -> EarlierStep:
    known = {**origins, **judgement.find_origins()}
    parameters = {
        value.parameter: value.array for value in judgement.steps["reference"].leaves if value.parameter is not None
    }
    differences = {pair.name: pair.difference for pair in judgement.unequal if pair.candidate.parameter}
    unmoved = find_unmoved(judgement.steps["reference"])
    return EarlierStep(known, parameters, differences, judgement.proves_updates, unmoved, judgement.spread)


def _writes_otherwise(grown: Verdict, judgement: Judgement) -> bool:
    """Do the named calls, or those inside the named modules, write something, and one of them what the other run has
    not? What one run alone keeps for later steps, such as running statistics, the other does not keep otherwise."""
    if grown.call is None:
        return False
    named = {"reference": grown.call.reference[-1], "candidate": grown.call.candidate[-1]}
    written = {side: _find_written(call, judgement.steps[side]) for side, call in named.items()}
    exists = judgement.counterparts.exists
    return all(written.values()) and not all(exists(side, one) for side, values in written.items() for one in values)


def _find_written(named: Call, step: TrueStep) -> list[TrueValue]:
    calls = [one for one in step.calls.values() if one.name == named.name]
    if named.kind == "module":
        calls += [one for one in step.calls.values() if one.module_path == named.path]
    return [step.values[number] for one in calls for slot, number in one.outputs.items() if slot.startswith(WRITTEN)]


def _finds_otherwise(grown: Verdict, finding: Finding) -> bool:
    """Does the named call find something else where the step before has written to it?"""
    name = None if grown.call is None else grown.call.name
    return any(pair.reference.name == name and keeps_otherwise(pair, finding.past.kept) for pair in finding.pairs)


def _is_refuted(grown: Verdict, judgement: Judgement) -> bool:
    """Has all that the named call gives the same truth in both runs? Or is it given something else, as where parameters
    are joined, and all are updated alike? Calls with other shapes are no pair. Drawn numbers tell nothing of what an
    optimizer does: that is not executed with them."""
    if judgement.is_drawn and grown.call and any(one.is_bad and not one.is_tensor for one in grown.call.values):
        return False
    states = [] if grown.call is None else _compare_truths(grown.call, judgement)
    if not all(_is_in_order(value) for value, _ in states):
        return True
    results = [is_same for value, is_same in states if not value.is_input]
    if results and all(results):
        return True
    return judgement.proves_updates and not all(is_same for value, is_same in states if value.is_input)


def _is_told_by_statistics(grown: Verdict, judgement: Judgement, finding: Finding) -> bool:
    """Of a run that has statistics only: is the growth of its error all that there is to say? It is where both programs
    mean the same, and recorded values that mean the same are far apart; or where only numbers that were drawn part, and
    nobody called anything otherwise."""
    if not judgement.is_equal:
        return grown.kind == "agree" and judgement.is_drawn and not _calls_otherwise(judgement)
    if grown.kind not in ("source", "entered", "unequal start"):  # rounding may grow in an optimizer
        return False
    named = [] if grown.call is None else _compare_truths(grown.call, judgement)
    if named and all(is_same and _is_in_order(value) for value, is_same in named):
        return True  # a pair of calls, no mistake of the alignment
    return any(
        is_same and _has_lost_digits(value)
        for pair in finding.pairs
        for value, is_same in _compare_truths(pair, judgement)
    )


def _calls_otherwise(judgement: Judgement) -> bool:
    return any(one.is_called_otherwise for one in judgement.differences[:1])


def _has_lost_digits(value: ValuePair) -> bool:
    """A sketch tells nothing of numbers that are laid out otherwise."""
    reference, candidate, measured = value.reference, value.candidate, value.measurement
    if not isinstance(reference, TensorSlot) or not isinstance(candidate, TensorSlot) or measured is None:
        return False
    unit = value.coarsest or unit_roundoff(reference.dtype) or 0.0
    if not _is_in_order(value):
        measured = measure_statistics(replace(reference, sketch=None), replace(candidate, sketch=None))
    return measured.relative_l2 is not None and measured.relative_l2 > math.sqrt(unit)


def _is_in_order(value: ValuePair) -> bool:
    slots = value.reference, value.candidate
    return len({slot.shape for slot in slots if isinstance(slot, TensorSlot)}) == 1


def _compare_truths(pair: CallResult | PairedCall, judgement: Judgement) -> list[tuple[ValuePair, bool | None]]:
    """The tensors of two calls, and whether both mean the same."""
    one = pair.match if isinstance(pair, PairedCall) else pair
    calls = one.reference[-1], one.candidate[-1]
    tensors = [value for value in pair.values if value.is_tensor and None not in (value.reference, value.candidate)]
    return [(value, is_same_value(value, calls, judgement)) for value in tensors]


def _has_no_effect(grown: Verdict, judgement: Judgement) -> bool:
    """Is the named call given the same and gives something else, although nothing comes of it?"""
    if grown.call is None or grown.call.reference[-1].op != grown.call.candidate[-1].op:
        return False
    states = _compare_truths(grown.call, judgement)
    is_given_same = all(is_same for value, is_same in states if value.is_input)
    return is_given_same and any(is_same is False for value, is_same in states if not value.is_input)


def _add_values(verdict: Verdict, finding: Finding) -> Verdict:
    """With what went in and came out, where the calls that are named are a pair."""
    named = verdict.call
    if named is None:
        return verdict
    names = (named.reference[-1].name, named.candidate[-1].name)
    pair = next((one for one in finding.pairs if (one.reference.name, one.candidate.name) == names), None)
    if pair is None:
        return verdict
    pair.role, pair.because = named.role, named.because
    result = make_result(pair, finding.reference.run, finding.candidate.run)
    return replace(verdict, call=result, evidence=(*verdict.evidence, *describe_values(pair)))


def _is_in_question(grown: Verdict, finding: Finding) -> bool:
    """Is not all of it equal, bit for bit, or are other parameters tied, which no recorded value need show?"""
    lonely = (*finding.alignment.only_reference, *finding.alignment.only_candidate)
    if grown.kind != "agree" or not all(one.is_idle for one in lonely):
        return True
    values = own_tensors(finding.pairs)
    return any(value.status != "equal" or value.measurement is None for value in values) or _ties_otherwise(values)


def _ties_otherwise(values: Sequence[ValuePair]) -> bool:
    """Is a parameter of one run two in the other?"""
    names = {
        (value.reference.parameter, value.candidate.parameter)
        for value in values
        if isinstance(value.reference, TensorSlot) and isinstance(value.candidate, TensorSlot)
    }
    known = [pair for pair in names if None not in pair]
    return any(len({pair[side] for pair in known}) < len(known) for side in (0, 1))
