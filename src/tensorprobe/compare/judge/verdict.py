"""The sentence: which call went wrong first, and the evidence for it, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tensorprobe.compare.judge.agreement import word_agreement
from tensorprobe.compare.judge.evidence import (
    MAX_NAMES,
    MAX_VALUES,
    Finding,
    describe_defaults,
    describe_difference,
    describe_lines,
    describe_not_compared,
    describe_place,
    describe_suspect,
    describe_values,
)
from tensorprobe.compare.judge.uncompared import is_filtered, is_unfinished
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import CallResult, ValuePair, Verdict, VerdictKind
from tensorprobe.model.count import count_noun
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a

_NOISE = 1e-4
"""A gradient that is so much smaller than the largest one is nothing but rounding."""


def find_sources(pairs: Iterable[PairedCall]) -> list[PairedCall]:
    """The calls where differences arise, in the order in which they arose; the framework's own calls do not count."""
    found = [pair for pair in pairs if pair.role in ("source", "entered") and not pair.is_framework_made]
    return sorted(found, key=lambda pair: pair.event_place)


def own_tensors(pairs: Iterable[PairedCall]) -> list[ValuePair]:
    """Those of the users' own calls: what the framework does itself, such as an optimizer, does not count."""
    return [value for pair in pairs if not pair.is_framework_made for value in pair.values if value.is_tensor]


def give_verdict(finding: Finding) -> Verdict:
    """One step of one process."""
    sources = find_sources(finding.pairs)
    is_consequence = finding.past.has_parted
    start = _find_unequal_parameters(finding) if finding.past.is_empty or is_consequence else []
    missing = _find_missing_gradients(finding)
    if start and not (sources and is_consequence):
        return _word_unequal_start(start, finding)
    if sources and not (missing and missing[0][0] < sources[0].event_place):
        updated = [] if finding.past.is_empty or is_consequence else _find_unequal_parameters(finding)
        if updated and updated[0][0] is sources[0] and _is_named(updated[0][1]):
            return _word_other_update(updated, finding)
        return _word_source(sources[0], finding)
    if missing:
        return _word_missing(missing[0][1], finding)
    judged = [pair for pair in finding.pairs if not pair.is_for_log]
    noise = {pair for pair in judged if pair.is_bad and pair.is_framework_made and _is_noise(pair, judged)}
    for pair in noise:
        pair.role, pair.because = "clean", ""
    judged = [pair for pair in judged if pair not in noise]
    own = _find_framework_source(judged)
    if own is not None:
        return _word_framework(own, finding)
    differing = [pair for pair in judged if pair.is_bad]
    differing.sort(key=lambda pair: (pair.is_framework_made, pair.event_place))
    if differing:
        return _word_milder(differing[0], finding)
    return word_agreement(finding)


# ---------------------------------------------------------------------------------------------- what is to be said


def _find_unequal_parameters(finding: Finding) -> list[tuple[PairedCall, ValuePair]]:
    """Those that differ when they are first used. Later an optimizer may have changed them, within the same step.

    At level L1 a parameter has no name to know it by. It counts until the first gradient, and until the runs part for
    another reason: a value of which the dump does not say where it comes from may follow from that.
    """
    found = []
    seen: set[str] = set()
    is_known_by_name_only = False
    for pair in finding.pairs:
        if pair.reference.direction == FORWARD and not pair.is_framework_made:
            names = {value.slot: _parameter_name(pair, value, finding) for value in pair.inputs}
            if is_known_by_name_only and pair.reference.kind == "api":
                names = {}
            fresh = [value for value in pair.inputs if names.get(value.slot) and names[value.slot] not in seen]
            seen.update(str(names[value.slot]) for value in fresh)
            unequal = [(pair, value) for value in fresh if value.is_bad]
            found += unequal
            has_parted = pair.role in ("source", "entered") and not unequal
            is_known_by_name_only = is_known_by_name_only or has_parted
        is_known_by_name_only = is_known_by_name_only or pair.reference.direction == BACKWARD
    return found


def _find_framework_source(pairs: Iterable[PairedCall]) -> PairedCall | None:
    """The call of an optimizer that went wrong before any call of the program differs: its parameters came next."""
    for pair in sorted(pairs, key=lambda pair: pair.event_place):
        if pair.is_framework_made and pair.role in ("source", "entered"):
            return pair
        if pair.is_bad and not pair.is_framework_made:
            return None
    return None


def _is_noise(pair: PairedCall, pairs: Sequence[PairedCall]) -> bool:
    """Is what differs the rounding of a gradient that is zero, as that of a bias before a softmax, or what an optimizer
    keeps of it? Then it is much smaller than that of other parameters."""
    alike = [one for one in pairs if one.is_framework_made and one.reference.op == pair.reference.op]
    largest = max((_size(value) or 0.0 for one in alike for value in one.values), default=0.0)
    sizes = [_size(value) for value in pair.values if value.is_bad]
    return all(size is not None and size <= _NOISE * largest for size in sizes)


def _size(value: ValuePair) -> float | None:
    """Of the larger one, by its norm."""
    norms = [slot.norm if isinstance(slot, TensorSlot) else None for slot in (value.reference, value.candidate)]
    known = [abs(float(norm)) for norm in norms if isinstance(norm, (int, float)) and math.isfinite(norm)]
    return max(known) if len(known) == 2 else None


def _parameter_name(pair: PairedCall, value: ValuePair, finding: Finding) -> str | None:
    """`blocks.0.norm.weight` for a slot that holds a parameter: at level L1, one that the model names, or a leaf that
    requires a gradient.

    What a call works on, `input.0`, looks like one where the call that computed it was not recorded; a table that is
    looked into is one.
    """
    if value.slot.startswith("parameters."):
        return ".".join(filter(None, (pair.reference.path, value.slot.removeprefix("parameters."))))
    sides = ((finding.reference, value.reference), (finding.candidate, value.candidate))
    if pair.reference.kind != "api" or pair.reference.parent is not None:
        return None
    if not all(isinstance(slot, TensorSlot) and side.flow.producer(slot) is None for side, slot in sides):
        return None
    known = value.reference.parameter if isinstance(value.reference, TensorSlot) else None
    may_be_one = value.slot != "input.0" or is_a(word_of(pair.reference), "lookup")
    is_trained = all(isinstance(slot, TensorSlot) and slot.requires_grad is True for _, slot in sides)
    if known is not None or not may_be_one or not is_trained:
        return known
    name = f"{value.slot} of {pair.reference.name}"
    return f"{name} in module {pair.reference.module_path}" if pair.reference.module_path else name


def _is_named(value: ValuePair) -> bool:
    """Is it a parameter for certain, and no intermediate result of code that was not recorded?"""
    is_known = isinstance(value.reference, TensorSlot) and value.reference.parameter is not None
    return is_known or value.slot.startswith("parameters.")


def _find_missing_gradients(finding: Finding) -> list[tuple[int, Call]]:
    """Backward calls that only the reference made, although their forward is paired: no gradient came there.

    Not when the candidate has no backward at all, or was cut off before it: then nothing is known of it.
    """
    reached = max(
        (pair.reference.position for pair in finding.pairs if pair.reference.direction == BACKWARD), default=-1
    )
    rank = finding.candidate.run.rank
    is_cut_off = is_unfinished(rank) or is_filtered(rank)
    has_apis = any(pair.reference.kind == "api" and not pair.is_framework_made for pair in finding.pairs)
    kind = "api" if has_apis else "module"  # at level L0
    found = []
    for unpaired in finding.alignment.only_reference:
        call = unpaired.call
        forward = finding.reference.flow.forward_of(call)
        is_known = call.position < reached or not is_cut_off
        if (
            call.direction == BACKWARD
            and not unpaired.is_idle
            and call.kind == kind
            and is_known
            and finding.reference.pair(forward) is not None
        ):
            found.append((finding.reference.places[call.name], call))
    return sorted(found, key=lambda one: one[0])


# ---------------------------------------------------------------------------------------------- putting it into words


def _word_unequal_start(start: list[tuple[PairedCall, ValuePair]], finding: Finding) -> Verdict:
    pair = start[0][0]
    names = [_parameter_name(*one, finding) or one[1].slot for one in start]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    subject = "1 parameter differs" if len(start) == 1 else f"{len(start)} parameters differ"
    headline = (
        f"The runs started from different values: {subject} before the first call: "
        f"{', '.join(names[:MAX_NAMES])}{more}."
    )
    if finding.past.has_parted:
        headline = f"The step started from different parameters: the runs diverged earlier. {subject} before it."
    evidence = [f"{_parameter_name(*one, finding)}: {describe_difference(one[1])}" for one in start[:MAX_VALUES]]
    sources = [found for found in find_sources(finding.pairs) if found not in [one[0] for one in start]]
    if sources:
        evidence.append(f"the first other difference is at {describe_place(sources[0])}: {sources[0].because}")
    return _verdict("unequal start", headline, evidence, pair, finding)


def _word_other_update(updated: list[tuple[PairedCall, ValuePair]], finding: Finding) -> Verdict:
    """All that was recorded of the steps before agrees, and yet parameters are not the same now."""
    pair = updated[0][0]
    names = [_parameter_name(*one, finding) or one[1].slot for one in updated]
    others = f" and {count_noun(len(names) - 1, 'other')} were" if len(names) > 1 else " was"
    headline = (
        f"The runs diverge between the steps: {names[0]}{others} updated differently after the previous step, whose "
        f"recorded calls agree. It is first used at {describe_place(pair)}."
    )
    evidence = [
        f"{name}: {describe_difference(one[1])}" for name, one in zip(names, updated[:MAX_VALUES], strict=False)
    ]
    evidence.append(
        "the learning rate, clipping and the optimizer act there; to record them, call stop after the optimizer's step"
    )
    return _verdict("entered", headline, [*describe_lines(pair, finding), *evidence], pair, finding)


def _word_source(pair: PairedCall, finding: Finding) -> Verdict:
    kind: VerdictKind = "random" if pair.is_random else "entered" if pair.role == "entered" else "source"
    direction = " in backward" if pair.reference.direction == BACKWARD else ""
    headline = f"The runs first differ{direction} at {describe_place(pair)}: {pair.because}."
    evidence = [*describe_lines(pair, finding), *describe_values(pair)]
    evidence += describe_defaults(pair, finding)
    evidence += [describe_suspect(call, finding) for call in pair.suspects[:MAX_NAMES]]
    evidence += describe_not_compared(pair, finding)
    return _verdict(kind, headline, evidence, pair, finding)


def _word_missing(call: Call, finding: Finding) -> Verdict:
    module = f" (module {call.module_path})" if call.module_path else ""
    headline = (
        f"The runs first differ in backward: {call.name}{module} is only in the reference: no gradient reaches it."
    )
    if not any(pair.reference.direction == BACKWARD for pair in finding.pairs):
        headline = f"The forward agrees, but the candidate has no backward: no gradient reaches {call.name}{module}."
    forward = finding.reference.pair(finding.reference.flow.forward_of(call))
    evidence = describe_lines(forward, finding) if forward else []
    inserted = [unpaired.call for unpaired in finding.alignment.only_candidate if unpaired.call.direction == FORWARD]
    evidence += [describe_suspect(found, finding) for found in inserted[:MAX_NAMES]]
    return Verdict("missing", headline, tuple(evidence), suspects=(call, *inserted[:MAX_NAMES]))


def _word_milder(pair: PairedCall, finding: Finding) -> Verdict:
    evidence = [*describe_lines(pair, finding), *describe_values(pair), *describe_not_compared(pair, finding)]
    if pair.role == "discontinuity":
        headline = f"No call went wrong, but rounding flipped a choice at {describe_place(pair)}: {pair.because}."
        return _verdict("discontinuity", headline, evidence, pair, finding)
    if pair.role == "drift":
        headline = (
            f"No single call went wrong, but the error grows too large: at {describe_place(pair)} {pair.because}."
        )
        return _verdict("drift", headline, evidence, pair, finding)
    if pair.is_framework_made:
        return _word_framework(pair, finding)
    headline = f"The runs differ, and no single call can be blamed; the first that differs is {describe_place(pair)}."
    return _verdict("drift", headline, evidence, pair, finding)


def _word_framework(pair: PairedCall, finding: Finding) -> Verdict:
    is_only = not any(found.is_bad for found in finding.pairs if not found.is_framework_made)
    program = "All calls of the program agree" if is_only else "All calls of the program before it agree"
    caller = pair.reference.caller or pair.candidate.caller
    headline = f"{program}; the first difference is in a call of the {caller}, {describe_place(pair)}: {pair.because}."
    evidence = [*describe_lines(pair, finding), *describe_values(pair), *describe_not_compared(pair, finding)]
    return _verdict("framework" if is_only else "entered", headline, evidence, pair, finding)


def _verdict(kind: VerdictKind, headline: str, evidence: list[str], pair: PairedCall, finding: Finding) -> Verdict:
    result = make_result(pair, finding.reference.run, finding.candidate.run)
    return Verdict(kind, headline, tuple(evidence), call=result, suspects=pair.suspects)


def make_result(pair: PairedCall, reference: Run, candidate: Run) -> CallResult:
    """What is handed out of a judged pair."""
    return CallResult(
        reference=pair.match.reference,
        candidate=pair.match.candidate,
        rule=pair.match.rule,
        values=tuple(pair.values),
        role=pair.role,
        because=pair.because,
        reference_location=reference.location(pair.reference),
        candidate_location=candidate.location(pair.candidate),
    )
