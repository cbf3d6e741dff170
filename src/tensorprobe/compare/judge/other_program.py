"""Where two programs are written differently and nothing but statistics tells how: what they are for decides whether
they differ, and what their calls compute, not what they are called, where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorprobe.compare.judge.content_slice import ContentFinder, Parting
from tensorprobe.compare.judge.dissolution import dissolve
from tensorprobe.compare.judge.evidence import Finding, describe_call_lines, describe_calls
from tensorprobe.compare.judge.kept_state import keeps_otherwise
from tensorprobe.compare.judge.other_update import Change, find_other_updates
from tensorprobe.compare.judge.step_result import Agreement, add_losses, find_agreement
from tensorprobe.compare.judge.uncompared import contradicts_record, is_unfinished
from tensorprobe.compare.judge.verdict import find_sources, give_verdict
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.measure.statistic_measure import has_near_statistics, sketched_distance
from tensorprobe.compare.result import CallResult, Verdict, VerdictKind
from tensorprobe.model.count import count_noun
from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run

_JUDGED: tuple[VerdictKind, ...] = (
    *("unequal start", "source", "entered", "discontinuity", "random", "drift", "missing", "incomplete", "unrelated"),
)
_FEW = 3
"""So many calls more or less are an edit of one program, all others of which are still pairs."""
_OTHER_ORDER = 0.1
"""So much of their size are numbers apart that lie in another order."""
_ADVICE = 'to have every call checked without rounding, record both runs with task "replay" or "tensor"'


def heed_results(verdict: Verdict, finding: Finding, *, is_drawn: bool, is_told: bool = False) -> Verdict:
    """The verdict; or that both have the same results, or where these part, if calls that are no pairs were held
    against each other, or numbers were drawn (`is_drawn`) that do not go together. What both keep from step to step is
    in no result: where it differs, that is the verdict. `is_told`: it names a call by its arguments, which the results
    of a coarse dtype do not refute."""
    runs = finding.reference.run, finding.candidate.run
    is_whole = not finding.is_cut_short and not any(is_unfinished(run.rank) for run in runs)
    if verdict.kind not in _JUDGED or not is_whole or contradicts_record(finding):
        return verdict
    if _list_forward(runs[0]) == _list_forward(runs[1]):
        return verdict
    agreement = find_agreement(*runs, is_strict=is_drawn)
    if agreement is not None and agreement.is_coarse and is_told:
        return verdict
    if agreement is not None:
        kept = {pair for pair in finding.pairs if keeps_otherwise(pair, finding.past.kept)}
        for pair in finding.pairs:
            if pair not in kept:
                _clear(pair)
        if find_sources(kept):
            return give_verdict(finding)
        updates = find_other_updates(*runs)
        if updates:
            return _word_updates(updates, finding)
        return Verdict("agree", _word_agreement(agreement), (_word_programs(finding), *_advise(finding)))
    if _count_lone(finding) + _count_grouped(finding) <= _FEW:
        return verdict
    finder = ContentFinder(*runs)
    if verdict.kind == "unrelated" and not finder.is_one_model:
        return verdict
    parting = None if _names_beginning(verdict, finder) else finder.find_parting()
    if parting is None or (verdict.kind == "unequal start" and parting.is_given_other):
        return replace(verdict, evidence=(*verdict.evidence, _word_programs(finding), *_advise(finding)))
    if is_drawn and parting.is_given_other:
        return verdict
    for pair in finding.pairs:
        if pair.role in ("source", "entered", "drift") and not pair.is_framework_made:
            pair.role, pair.because, pair.suspects = "propagated", "", ()
    return _word_parting(parting, finding)


def _advise(finding: Finding) -> list[str]:
    tasks = {side.run.rank.header.get("task") for side in (finding.reference, finding.candidate)}
    return [] if tasks <= {"tensor", "replay"} else [_ADVICE]


def _names_beginning(verdict: Verdict, finder: ContentFinder) -> bool:
    named = verdict.call
    return named is not None and (
        any(map(finder.is_beginning, (*named.reference, *named.candidate)))
        or _is_in_other_order(named.reference[-1], named.candidate[-1])
    )


def _is_in_other_order(reference: Call, candidate: Call) -> bool:
    """Do both give the same numbers of one shape, and do their sketches see that they lie otherwise?"""
    results = [[slot for slot in call.tensors if not slot.is_input] for call in (reference, candidate)]
    pairs = [(one, other) for one, other in zip(*results, strict=False) if one.shape == other.shape]
    same = [pair for pair in pairs if has_near_statistics(*pair)]
    return any(sketched_distance(*pair) > _OTHER_ORDER * abs(float(pair[0].norm or 0.0)) for pair in same)


def _list_forward(run: Run) -> list[str]:
    return [call.name for call in run.calls if call.direction == FORWARD and call.caller is None]


def _clear(pair: PairedCall) -> None:
    if not pair.is_framework_made:
        dissolve(pair)
        pair.role, pair.because, pair.suspects = "clean", "", ()


def _count_lone(finding: Finding) -> int:
    lonely = (*finding.alignment.only_reference, *finding.alignment.only_candidate)
    return sum(one.call.direction == FORWARD and one.call.caller is None and not one.is_idle for one in lonely)


def _count_grouped(finding: Finding) -> int:
    groups = [match for match in finding.alignment.matches if match.is_group and match.reference[-1].caller is None]
    return sum(call.direction == FORWARD for match in groups for call in (*match.reference, *match.candidate))


def _word_programs(finding: Finding) -> str:
    lone = _count_lone(finding)
    count = f": {count_noun(lone, 'call has', 'calls have')} no counterpart by name" if lone else ""
    return f"the programs are written differently{count}"


def _word_agreement(agreement: Agreement) -> str:
    same = agreement.gradients
    gradients = count_noun(same.count, "gradient")
    worst = max(agreement.loss_error, same.error)
    words = f"The runs have the same results: the loss and {gradients} agree to {worst:.1g}, by their statistics"
    if same.unknown:
        words += f"; {count_noun(same.unknown, 'other gradient')} of the reference could not be compared"
    return f"{words}."


def _word_updates(updates: Sequence[tuple[Change, Change]], finding: Finding) -> Verdict:
    first, second = updates[0]
    others = f" and {count_noun(len(updates) - 1, 'other')} are" if len(updates) > 1 else " is"
    names = first.parameter if first.parameter == second.parameter else f"{first.parameter} ({second.parameter})"
    because = "the gradients are the same, but the parameters are updated differently"
    evidence = describe_call_lines({"reference": first.call, "candidate": second.call}, finding)
    evidence += [
        f"the update changes {first.parameter} by about {first.size:.2g}, and in the candidate {second.size:.2g}"
    ]
    evidence += [_word_programs(finding), *_advise(finding)]
    places = [
        side.run.location(one.call)
        for side, one in zip((finding.reference, finding.candidate), updates[0], strict=True)
    ]
    result = CallResult((first.call,), (second.call,), "statistics", (), "source", because, places[0], places[1])
    headline = f"The loss and the gradients agree, but {names}{others} updated differently."
    return Verdict("source", headline, tuple(evidence), call=result)


def _word_parting(parting: Parting, finding: Finding) -> Verdict:
    sides = {"reference": finding.reference, "candidate": finding.candidate}
    calls = {"reference": parting.reference, "candidate": parting.candidate}
    named = {side: call for side, call in calls.items() if call is not None}
    losses = [add_losses(side.run) for side in sides.values()]
    evidence = [f"the recorded loss is {losses[0]!r} in the reference and {losses[1]!r} in the candidate"]
    evidence += describe_call_lines(calls, finding)
    evidence += [f"{_word_programs(finding)}, so values were matched by their statistics"]
    evidence += _advise(finding)
    shown = list(named.values())
    places = [sides[side].run.location(call) for side, call in named.items()]
    both = (shown[0],), (shown[-1],)
    result = CallResult(*both, "statistics", (), "source", parting.because, places[0], places[-1])
    return Verdict("source", _word_place(parting), tuple(evidence), call=result)


def _word_place(parting: Parting) -> str:
    place = describe_calls(parting.reference, parting.candidate)
    if parting.is_shared or None in (parting.reference, parting.candidate):
        return f"The runs first differ at {place}: {parting.because}."
    return f"The runs diverge near {place}: from here on, each run has values that the other does not have."
