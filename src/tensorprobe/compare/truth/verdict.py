"""The sentence of a comparison by truth, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from tensorprobe.compare.judge.evidence import describe_calls
from tensorprobe.compare.result import CallResult, OtherDifference, Role, Verdict, VerdictKind
from tensorprobe.compare.truth.difference import Difference, describe_call
from tensorprobe.compare.truth.finding import describe_finding, word_finding, word_numbers
from tensorprobe.compare.truth.judgement import SIDES, Judgement
from tensorprobe.compare.truth.precision import PrecisionLoss
from tensorprobe.compare.truth.remark import (
    MAX_NAMED,
    list_names,
    word_coarse_kernels,
    word_coarser_values,
    word_coverage,
)
from tensorprobe.compare.truth.value_index import other_side
from tensorprobe.compare.truth.weight_change import describe_weights
from tensorprobe.model.count import count_noun
from tensorprobe.model.name import FORWARD
from tensorprobe.replay.result import Finding
from tensorprobe.replay.true_step import TrueCall
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, word_lines
from tensorprobe.store.frame import describe_frame

_SLIGHT = 0.0005
"""A smaller share of the loss's difference is none."""
_OTHER_UPDATE = "both optimizers get the same gradients, but update the parameters differently"


class TruthWords:
    """Words one judgement of two runs."""

    def __init__(self, judgement: Judgement, reference: Run, candidate: Run) -> None:
        self._judgement = judgement
        self._runs = {SIDES[0]: reference, SIDES[1]: candidate}

    def give_verdict(self) -> Verdict:
        observed = self._judgement.observables
        is_known = bool(observed.losses) and not self._judgement.is_drawn
        losses = (observed.reference_total, observed.candidate_total) if is_known else None
        return replace(self._choose_verdict(), losses=losses)

    def _choose_verdict(self) -> Verdict:
        judgement = self._judgement
        if judgement.differences:
            return self._word_difference(judgement.differences[0], judgement.differences[1:])
        for side in reversed(SIDES):
            finding = next(self._judgement.lone_findings(side), None)
            if finding is not None:
                return self._word_finding(side, finding)
        if judgement.precision_loss is not None:
            return self._word_precision(judgement.precision_loss)
        if not judgement.is_equal:
            return Verdict(
                "drift",
                f"{self._word_observables()} The call that causes this could not be found.",
                tuple(word_coverage(self._judgement)),
            )
        evidence = (
            *self._word_rounding(),
            *word_coarse_kernels(judgement),
            *word_coarser_values(judgement),
            *self._word_weights(),
            *word_coverage(self._judgement),
        )
        return Verdict("agree", self._word_agreement(), evidence)

    # -- the same meaning ----------------------------------------------------------------------------------------------

    def _word_agreement(self) -> str:
        observed = self._judgement.observables
        what = []
        if observed.losses:
            what.append("the loss" if len(observed.losses) == 1 else f"{len(observed.losses)} losses")
        count = sum(pair.has_gradient for pair in observed.gradients)
        if count:
            what.append(f"the gradients of {count:,} parameters" if count > 1 else "the gradient of 1 parameter")
        if self._judgement.updates:
            updates = len(self._judgement.updates)
            what.append("their updates" if updates == count > 1 else f"{count_noun(updates, 'update')}")
        error = max(observed.loss_error, observed.worst_gradient)
        proved = " and ".join(filter(None, (", ".join(what[:-1]), *what[-1:]))) or "all results"
        have = "has" if what in (["the loss"], ["the gradient of 1 parameter"]) else "have"
        points = ", also for other parameter values" if self._judgement.second_point is not None else ""
        points = ", computed by the same calls" if self._judgement.is_one_program else points
        digits = f"to {error:.0e}" if error else "exactly"
        start = " with random tensors of the recorded statistics" if self._judgement.is_drawn else ""
        return (
            f"The runs agree. Both were executed again in float64{start}, and {proved} {have} the same value "
            f"{digits}{points}. What remains is rounding."
        )

    def _word_rounding(self) -> Iterator[str]:
        """How far what was recorded is from the truth, in each run."""
        for pair in self._judgement.observables.losses[: 0 if self._judgement.is_drawn else 1]:
            off = []
            for side, value in zip(SIDES, pair, strict=True):
                call = self._runs[side].by_name.get(value.maker or "")
                slot = next((one for one in call.tensors if one.slot == value.slot), None) if call else None
                if slot is None or value.array.size != 1 or not isinstance(slot.max, float) or not value.array.item():
                    return
                off.append(f"{abs(slot.max / value.array.item() - 1):.1g} in the {side}")
            yield f"rounding: the relative error of the recorded loss is {' and '.join(off)}"

    def _word_weights(self) -> list[str]:
        return describe_weights(self._judgement.observables, self._judgement.counterparts)

    # -- another meaning -----------------------------------------------------------------------------------------------

    def _word_observables(self) -> str:
        observed = self._judgement.observables
        updated = [pair for pair in self._judgement.updates if not pair.is_equal]
        if observed.has_same_gradients and updated:
            names = list_names([pair.name for pair in updated])
            count = f"{len(updated):,} of {len(self._judgement.updates):,} parameters"
            worst = max(pair.error for pair in updated)
            return (
                f"Without rounding, the loss and the gradients are the same, but {count} are updated "
                f"differently ({names}): the updates differ by up to {worst:.2g} of their size."
            )
        if observed.is_equal and self._judgement.unequal and self._judgement.is_equal:
            return "When it starts from the reference's values, the candidate computes the same."
        if observed.is_equal and self._judgement.is_equal:
            return "Without rounding, the loss and the gradients are the same."
        if observed.is_equal:
            return "The two programs compute the same with these parameters, but not with other parameter values."
        if self._judgement.is_drawn:
            what = "gradients differ" if observed.has_same_loss else "the loss differs"
            return (
                "Neither run recorded tensors. With random tensors of the recorded statistics, and without rounding, "
                f"{what}."
            )
        if not observed.has_same_loss:
            losses = f"{observed.reference_total!r} in the reference and {observed.candidate_total!r} in the candidate"
            return f"Without rounding, the loss is {losses}."
        differing = [pair for pair in observed.gradients if not pair.is_equal]
        if not differing:
            same = "The loss and the gradients are the same. " if observed.losses else ""
            return f"{same}Results that no other call uses differ."
        names = list_names([pair.name for pair in differing])
        count = f"{len(differing):,} of {len(observed.gradients):,} parameter gradients"
        verb = "differs" if len(differing) == 1 else "differ"
        return f"Without rounding, the loss is the same, but {count} {verb} ({names})."

    def _word_difference(self, first: Difference, others: list[Difference]) -> Verdict:
        kind: VerdictKind = first.kind
        calls = {side: self._find_calls(side, first.call(side), first.is_backward) for side in SIDES}
        place = _describe_inside(first) or _describe_place(calls)
        is_updated_otherwise = any(not pair.is_equal for pair in self._judgement.updates)
        is_written_otherwise = is_updated_otherwise and (not first.is_found or first.is_inside)
        if first.kind == "unequal start":
            headline = f"The runs started from different values: {first.because}; first used at {place}."
        elif first.kind == "discontinuity":
            headline = f"No call went wrong, but rounding flipped a choice at {place}: {first.because}."
        elif is_written_otherwise and self._judgement.observables.has_same_gradients:
            because = first.because if first.is_found else _OTHER_UPDATE
            headline = f"The runs first differ in the update of the parameters, at {place}: {because}."
        else:
            headline = f"The runs first differ {_describe_region(first) or f'at {place}'}: {first.because}."
        evidence = [self._word_observables(), *_word_effect(first), *self._lines(calls), *self._word_region(first)]
        evidence += self._word_settings(first) if is_written_otherwise else ()
        evidence += [f"also: {_describe_other(one)}" for one in others[:MAX_NAMED]]
        evidence += [*self._word_weights(), *word_coverage(self._judgement)]
        result = self._result(calls, _role_of(first), first.because)
        suspects = [call for one in first.suspects for call in self._find_calls(SIDES[1], one, is_backward=False)]
        if suspects:
            names = ", ".join(call.name for call in suspects[:MAX_NAMED])
            last = first.candidate.position if first.candidate is not None else 0
            where = "before" if first.suspects[0].position < last else "after"
            evidence.insert(1, f"it may also be one of these calls {where} it, which only move data: {names}")
        return Verdict(
            kind,
            headline,
            tuple(evidence),
            call=result,
            suspects=tuple(suspects),
            effect=first.effect,
            others=tuple(self._find_others(others)),
            region=self._find_region(first),
        )

    def _find_others(self, others: list[Difference]) -> Iterator[OtherDifference]:
        for one in others:
            calls = {side: self._find_calls(side, one.call(side), one.is_backward) for side in SIDES}
            result = self._result(calls, _role_of(one), one.because)
            if result is not None:
                yield OtherDifference(result, one.effect)

    def _find_region(self, one: Difference) -> tuple[Call, ...]:
        """The calls through which what goes into the first of several calls comes out of the last."""
        named = one.call(one.region.side) if one.region is not None else None
        if one.region is None or named is None:
            return ()
        step = self._judgement.steps[one.region.side]
        first, last = step.calls.get(named.name), step.calls.get(one.region.last.name)
        if first is None or last is None:
            return ()
        wanted = step.find_before({*last.outputs.values()}) | {*last.outputs.values()}
        reached, found = set(first.inputs.values()), list[Call]()
        for call in sorted(step.calls.values(), key=lambda call: call.position):
            is_between = first.position <= call.position <= last.position
            makes = {*call.outputs.values()}
            if is_between and not makes.isdisjoint(wanted) and not reached.isdisjoint(call.inputs.values()):
                reached |= makes
                found += self._find_calls(one.region.side, call, is_backward=False)
        return tuple(dict.fromkeys(found))

    def _word_finding(self, side: str, finding: Finding) -> Verdict:
        headline = word_finding(side, self._describe_record(side, finding.record), finding)
        found = {one: run.by_name.get(finding.record) for one, run in self._runs.items()}
        calls: dict[str, tuple[Call, ...]] = {one: () if call is None else (call,) for one, call in found.items()}
        evidence = [*word_numbers(finding), *self._lines(calls), *word_coverage(self._judgement)]
        if finding.kind == "sum":
            users = ", ".join(self._describe_record(side, name) for name in finding.other.split(", ")[:MAX_NAMED])
            evidence.insert(1, f"the calls that use the value, and return its gradient: {users}")
        return Verdict(
            "source", headline, tuple(evidence), call=self._result(calls, "source", describe_finding(finding))
        )

    def _word_precision(self, loss: PrecisionLoss) -> Verdict:
        calls = {
            SIDES[0]: self._find_calls(SIDES[0], loss.reference, is_backward=False),
            SIDES[1]: self._find_calls(SIDES[1], loss.candidate, is_backward=False),
        }
        errors = f"{loss.candidate_error:.1e} in the candidate and {loss.reference_error:.1e} in the reference"
        because = f"the relative error of its {loss.slot} is {errors}"
        place = _describe_place(calls)
        headline = f"Both programs are equivalent, but the candidate loses precision at {place}: {because}."
        evidence = (*self._lines(calls), *word_coverage(self._judgement))
        return Verdict("drift", headline, evidence, call=self._result(calls, "drift", because))

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _find_calls(self, side: str, call: TrueCall | None, is_backward: bool) -> tuple[Call, ...]:
        if call is None:
            return ()
        by_name = self._runs[side].by_name
        name = call.inside or call.name
        names = [call.backward_name, name] if is_backward else [name]
        return next(((by_name[name],) for name in names if name in by_name), ())

    def _result(self, calls: dict[str, tuple[Call, ...]], role: Role, because: str) -> CallResult | None:
        reference, candidate = calls[SIDES[0]], calls[SIDES[1]]
        if not reference and not candidate:
            return None
        locations = [self._runs[side].location(calls[side][0]) if calls[side] else None for side in SIDES]
        return CallResult(reference or candidate, candidate or reference, "truth", (), role, because, *locations)

    def _lines(self, calls: dict[str, tuple[Call, ...]]) -> list[str]:
        found = {}
        for side in SIDES:
            for call in calls.get(side, ()):
                run = self._runs[side]
                lines = run.describe_lines(call, run.by_name.get(call.in_direction(FORWARD)))
                if lines:
                    found[side] = lines
        return word_lines(found)

    def _word_region(self, one: Difference) -> Iterator[str]:
        """The end of several calls that stand against one, and what goes in."""
        if one.region is None:
            return
        side = one.region.side
        for call in self._find_calls(side, one.region.last, is_backward=False):
            location = self._runs[side].location(call)
            if location:
                yield f"{side} line, last call: {describe_frame(location)}"
        single = one.call(other_side(side))
        if one.region.shared and single is not None:
            yield f"the same in both runs: {', '.join(one.region.shared)} of {single.name}"

    def _word_settings(self, one: Difference) -> Iterator[str]:
        """What the calls of two optimizers were given by name. One that does all at once is given all its settings."""
        for side in SIDES:
            call = one.call(side)
            for named in self._find_calls(side, call, is_backward=False)[:1]:
                call = self._judgement.steps[side].calls.get(named.name, call)
            known = (
                {} if call is None else {slot: value for slot, value in call.arguments.items() if _is_setting(value)}
            )
            words = [f"{slot.removeprefix('kwargs.')}={value:g}" for slot, value in known.items() if "kwargs." in slot]
            if call is not None and words:
                yield f"{describe_call(call)} of the {side} was called with {', '.join(sorted(words))}"

    def _describe_record(self, side: str, record: str) -> str:
        call = self._runs[side].by_name.get(record)
        path = call.module_path if call is not None else None
        return f"{record} in module {path}" if path else record


def _is_setting(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _role_of(one: Difference) -> Role:
    return "discontinuity" if one.kind == "discontinuity" else "source" if one.kind == "source" else "entered"


def _describe_place(calls: dict[str, tuple[Call, ...]]) -> str:
    reference, candidate = (next(iter(calls[side]), None) for side in SIDES)
    return describe_calls(reference, candidate)


def _describe_region(one: Difference) -> str:
    """If one call stands against several."""
    if one.region is None:
        return ""
    side = one.region.side
    first, single = one.call(side), one.call(other_side(side))
    assert first is not None and single is not None
    names = f"between {first.name} and {one.region.last.name} of the {side}"
    return f"{names}, which correspond to {single.name} of the {other_side(side)}"


def _describe_inside(one: Difference) -> str:
    """If one of the calls is a part of a recorded one."""
    reference, candidate = one.reference, one.candidate
    if reference is None or candidate is None or not one.is_inside:
        return ""
    path = candidate.module_path
    module = f" in module {path}" if path else ""
    return f"{describe_call(candidate)} of the candidate{module} and {describe_call(reference)} of the reference"


def _describe_other(one: Difference) -> str:
    call = one.candidate or one.reference
    is_known = one.effect is not None and one.effect > -_SLIGHT
    effect = f" ({_describe_share(one.effect or 0.0)} of the loss difference)" if is_known else ""
    return f"{describe_call(call) if call is not None else '?'}: {one.because}{effect}"


def _word_effect(one: Difference) -> Iterator[str]:
    if one.effect is not None and one.effect < -_SLIGHT:
        yield (
            "with the reference's value in this one place, the losses are further apart: the same difference may be in "
            "other places too, or another one follows"
        )
    elif one.effect is not None:
        share = _describe_share(one.effect)
        yield f"with the reference's value in its place, {share} of the loss difference disappears"


def _describe_share(share: float) -> str:
    """Of a sum of differences each may be more than all."""
    return "all" if share > 1 - _SLIGHT else "none" if share < _SLIGHT else f"{share:.1%}"
