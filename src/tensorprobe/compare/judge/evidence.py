"""The evidence of a verdict: a call, its lines, its values and what was not compared before it, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprobe.compare.judge.course import Past
from tensorprobe.compare.judge.other_precision import OtherPrecision
from tensorprobe.compare.match.alignment import Alignment
from tensorprobe.compare.match.pairing import PairedCall, RunSide
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.count import count_noun
from tensorprobe.run.call import Call
from tensorprobe.run.step import word_lines
from tensorprobe.store.frame import describe_frame
from tensorprobe.word.vocabulary import differing_defaults, is_across_frameworks

_OWNERS = {"Functional": "ops", "Mint": "mint", "MintFunctional": "mint.nn.functional"}
MAX_VALUES = 6
MAX_NAMES = 3


@dataclass(frozen=True)
class Finding:
    """What was found in one step of one process, before it is put into words."""

    pairs: Sequence[PairedCall]
    """All judged pairs, in the order of execution."""
    alignment: Alignment
    reference: RunSide
    candidate: RunSide
    past: Past
    """What the steps before this one explain."""
    precision: OtherPrecision | None = None
    """That of the candidate, if it is another one as a whole."""
    is_cut_short: bool = False
    allows_uncompared: bool = False
    """Is it an agreement, too, if something could not be compared?"""


def describe_place(pair: PairedCall) -> str:
    """By its name on both sides, and the module around it."""
    return describe_calls(pair.reference, pair.candidate)


def describe_calls(reference: Call | None, candidate: Call | None) -> str:
    """Two calls that stand against each other, or one that stands against none; the module around the first."""
    first = reference or candidate
    if first is None:
        return "a call that neither run recorded"
    names = first.name
    if reference is None or candidate is None:
        names += f" of the {'reference' if candidate is None else 'candidate'}"
    elif candidate.name != reference.name:
        names += f" (candidate: {candidate.name})"
    return f"{names} in module {first.module_path}" if first.module_path and first.kind == "api" else names


def describe_lines(pair: PairedCall, finding: Finding) -> list[str]:
    """Its source line, of both sides where they differ."""
    return describe_call_lines({"reference": pair.reference, "candidate": pair.candidate}, finding)


def describe_call_lines(calls: Mapping[str, Call | None], finding: Finding) -> list[str]:
    """The source lines of the calls of each side."""
    found = {}
    for word, side in (("reference", finding.reference), ("candidate", finding.candidate)):
        call = calls[word]
        lines = () if call is None else side.run.describe_lines(call, side.flow.forward_of(call))
        if lines:
            found[word] = lines
    return word_lines(found)


def describe_values(pair: PairedCall) -> list[str]:
    """What went in and what came out, what differs first."""
    found = []
    for word, values in (("input", pair.inputs), ("result", pair.outputs)):
        shown = [value for value in values if value.is_tensor or value.is_bad]
        shown.sort(key=lambda value: not value.is_bad)
        found += [f"{word} {value.slot}".rstrip() + f": {_describe_value(value)}" for value in shown[:MAX_VALUES]]
        if len(shown) > MAX_VALUES:
            found.append(f"{word}: {len(shown) - MAX_VALUES} more")
    return found


def _describe_value(value: ValuePair) -> str:
    if value.is_bad:
        return f"differs: {describe_difference(value)}"
    if value.measurement is not None and value.measurement.fallback is not None:
        return f"{_describe_agreement(value)}, only by its record: {value.measurement.fallback}"
    return _describe_agreement(value)


def _describe_agreement(value: ValuePair) -> str:
    if value.status == "equal":
        return "equal"
    if value.status == "close" and value.tolerance is None:
        return f"agrees within the tolerance, error {_number(value.error)}"
    if value.status == "close":
        return f"agrees, error {_number(value.error)}{_describe_allowed(value)}"
    return f"not compared: {value.reason}"


def _describe_allowed(value: ValuePair) -> str:
    return "" if value.tolerance is None else f"; rounding and the inputs' errors allow {_number(value.tolerance)}"


def describe_difference(value: ValuePair) -> str:
    """How two values differ: by how much, against what, where most."""
    words = [value.reason] if value.reason else []
    measurement = value.measurement
    if measurement is None:
        return value.reason
    only = [
        f"{count:,} {what} only in the {side}"
        for count, what, side in (
            (measurement.nan_only_reference, "NaN", "reference"),
            (measurement.nan_only_candidate, "NaN", "candidate"),
            (measurement.inf_only_reference, "Inf", "reference"),
            (measurement.inf_only_candidate, "Inf", "candidate"),
        )
        if count
    ]
    words += only
    if value.error is not None and math.isfinite(value.error):
        words.append(f"relative error {_number(value.error)}{_describe_allowed(value)}")
    elif measurement.basis == "checksum":
        words.append("the checksums differ")
    if measurement.worst_index is not None:
        place = list(measurement.worst_index)
        numbers = f"candidate {_exact(measurement.worst_candidate)}, reference {_exact(measurement.worst_reference)}"
        words.append(f"worst element {place}: {numbers}")
    if measurement.basis == "statistics":
        words.append("by statistics only")
    return ", ".join(words)


def describe_defaults(pair: PairedCall, finding: Finding) -> list[str]:
    """Between two frameworks: what the call, or the layer that makes it, does otherwise when it is told nothing."""
    if not is_across_frameworks(pair.reference.framework, pair.candidate.framework):
        return []
    found: dict[str, None] = {}
    for side, calls in ((finding.reference, pair.match.reference), (finding.candidate, pair.match.candidate)):
        for call in calls:
            layer = side.nesting.parent(call) if call.kind == "api" else None
            is_own = layer is not None and layer.path == call.module_path
            for one in (call, layer) if is_own and layer is not None else (call,):
                found.update(
                    dict.fromkeys(_describe_default(one, *default) for default in differing_defaults(one).items())
                )
    return list(found)[:MAX_NAMES]


def _describe_default(call: Call, argument: str, default: Mapping[str, Any]) -> str:
    owner = "nn" if call.kind == "module" else _OWNERS.get(call.prefix, call.prefix)
    words = f"by default {owner}.{call.op} of MindSpore has {argument}={default['mindspore']!r}"
    return f"{words}: {default['note']}" if "note" in default else f"{words}, PyTorch {default['pytorch']!r}"


def describe_suspect(call: Call, finding: Finding) -> str:
    """A call that only one run makes."""
    is_candidate = finding.candidate.run.by_name.get(call.name) is call
    side, other = (finding.candidate, "reference") if is_candidate else (finding.reference, "candidate")
    location = side.run.location(call)
    where = f": {describe_frame(location)}" if location else ""
    return f"without a counterpart in the {other}: {call.name}{where}"


def describe_not_compared(pair: PairedCall, finding: Finding) -> list[str]:
    """What the verdict cannot speak for: what of this step, before this call, has no partner or no numbers."""
    earlier = [found for found in finding.pairs if found.place < pair.place]
    values = sum(value.status == "not comparable" for found in earlier for value in found.values if value.is_tensor)
    sides = (finding.alignment.only_reference, pair.reference), (finding.alignment.only_candidate, pair.candidate)
    lone = [
        unpaired.call.name
        for lonely, call in sides
        for unpaired in lonely
        if unpaired.call.position < call.position and not (unpaired.is_idle or unpaired.call.caller is not None)
    ]
    here = "" if finding.past.is_empty else " in this step"
    if not values and not lone:
        return [f"everything before it{here} was compared"]
    words = []
    if values:
        words.append(count_noun(values, "value"))
    if lone:
        shown = ", ".join(lone[:MAX_NAMES])
        shown += ", …" if len(lone) > MAX_NAMES else ""
        words.append(f"{count_noun(len(lone), 'call')} without a counterpart ({shown})")
    return [f"not compared before it{here}: {' and '.join(words)}"]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"


def _exact(value: float | complex | int | bool | None) -> str:
    """With the digits of a float32; all of an integer."""
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)
