"""What `truth` says of a run, in sentences: built once, laid out by text and JSON.

A sentence is one fact in plain words. What is wrong comes first; what a run loses by rounding is information.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tensorprobe.model.count import count_noun
from tensorprobe.replay.result import CallTruth, Finding, Truth, is_leaf_record

_MAX_NAMED = 5
_MAX_GAPS = 5


@dataclass(frozen=True)
class TruthSummary:
    """The sentences about one step of one process."""

    headline: str
    findings: tuple[str, ...]
    observables: tuple[str, ...]
    """How far the loss and the gradients of the parameters are from the truth."""
    contributions: tuple[str, ...]
    """The calls that add most of the loss's error."""
    decisions: tuple[str, ...]
    coverage: tuple[str, ...]


def summarize_truth(truth: Truth) -> TruthSummary:
    """All that is said."""
    return TruthSummary(
        headline=_headline(truth),
        findings=tuple(_describe(finding, truth) for finding in truth.findings),
        observables=(*_describe_losses(truth), *_describe_gradients(truth)),
        contributions=tuple(_describe_contributions(truth)),
        decisions=tuple(_describe_decisions(truth)),
        coverage=tuple(_describe_coverage(truth)),
    )


def _headline(truth: Truth) -> str:
    count = len(truth.findings)
    if count:
        return f"{truth.name}: {count} {'thing is' if count == 1 else 'things are'} wrong."
    gaps = len(truth.unchecked)
    if gaps:
        return (
            f"{truth.name}: nothing wrong was found; {gaps} of {truth.coverage.call_count} calls could not be checked."
        )
    calls = count_noun(truth.coverage.call_count, "call computes what it", "calls compute what they")
    return f"{truth.name}: nothing is wrong. {'The' if truth.coverage.call_count == 1 else 'All'} {calls} should."


def _describe(finding: Finding, truth: Truth) -> str:
    words = {
        "kernel": _describe_kernel,
        "overflow": _describe_overflow,
        "derivative": _describe_derivative,
        "sum": _describe_sum,
        "write": _describe_write,
        "replica": _describe_replica,
    }
    text = words[finding.kind](finding)
    location = truth.locations.get(finding.record)
    return f"{text}\n  line: {location}" if location else text


def _describe_kernel(finding: Finding) -> str:
    said = f"meaning ({finding.other})" if finding.other else "name"
    return (
        f"{finding.record} does not compute what its {said} says: on the recorded inputs, {_numbers(finding)} "
        "No other call is to blame: its inputs are taken as they were recorded."
    )


def _describe_derivative(finding: Finding) -> str:
    of = f"its meaning ({finding.other})" if finding.other else "its forward call"
    return (
        f"{finding.record} is not the derivative of {of}: {_numbers(finding)} "
        "Look at its backward function, or at a hook inside of it."
    )


def _describe_sum(finding: Finding) -> str:
    if is_leaf_record(finding.record):
        return (
            f"The gradient of {finding.slot} ({finding.record}) is not the sum of what the calls that use it gave back "
            f"({finding.other}): {_numbers(finding)} A hook on it changes it, or a use of it was not recorded."
        )
    return (
        f"The gradient that {finding.record} got ({finding.slot}) is not the sum of what the calls after it gave back "
        f"({finding.other}): {_numbers(finding)} A hook on the tensor changes it, or a use of it was not recorded."
    )


def _describe_overflow(finding: Finding) -> str:
    count = finding.count
    return (
        f"{finding.record} overflows: {count:,} {'element' if count == 1 else 'elements'} of {finding.slot} "
        f"{'is' if count == 1 else 'are'} Inf or NaN, where the true result is a number."
    )


def _describe_write(finding: Finding) -> str:
    return (
        f"Somebody wrote into a tensor without a recorded call: {finding.slot} of {finding.record} is not what was "
        "recorded of it before. Look for writes through numpy, .data or a custom kernel in between."
    )


def _describe_replica(finding: Finding) -> str:
    return f"{finding.other}. What several ranks have in common must be the same bit for bit."


def _numbers(finding: Finding) -> str:
    judgement = finding.judgement
    assert judgement is not None
    place = f"{finding.slot}{list(judgement.index) if judgement.index else ''}"
    return f"{place} is {judgement.recorded:.9g} and should be {judgement.true:.9g}, " + (
        f"{judgement.units:,.3g} units of rounding away (up to {judgement.allowed_units:,.3g} are normal)."
        if judgement.factor is None
        else f"and all elements together are {judgement.factor:.4g} times what they should be."
    )


def _describe_losses(truth: Truth) -> Iterator[str]:
    for record, recorded, true in truth.losses:
        relative = abs(recorded - true) / abs(true) if true else abs(recorded - true)
        yield f"loss {record}: recorded {recorded:.9g}, true {true:.9g} (relative error {relative:.1e})"


def _describe_gradients(truth: Truth) -> Iterator[str]:
    rows = truth.parameter_gradients
    if rows:
        errors = [row.share_of(truth.largest_gradient) for row in rows]
        worst = rows[0]
        lost = sum(row.accumulated is not None and row.accumulated.overflow_count > 0 for row in rows)
        yield (
            f"gradients of {len(rows)} parameter{'s' if len(rows) > 1 else ''}: relative error {median(errors):.1e} "
            f"in the median, at most {errors[0]:.1e} ({worst.record}.{worst.slot})"
            + (f"; {lost} of them with Inf or NaN, which are left out, where the truth is a number" if lost else "")
        )


def _describe_contributions(truth: Truth) -> Iterator[str]:
    rows = [row for row in truth.rows if row.effect]
    total = sum(abs(row.effect or 0.0) for row in rows)
    for row in sorted(rows, key=_effect_size, reverse=True)[:_MAX_NAMED]:
        effect, units = row.effect or 0.0, row.own.units if row.own is not None else 0.0
        yield (
            f"{row.record}: its own rounding ({units:.1f} units of {row.dtype}) changes the loss by {effect:+.1e}, "
            f"{abs(effect) / total:.0%} of all such changes"
        )


def _effect_size(row: CallTruth) -> float:
    return abs(row.effect or 0.0)


def _describe_decisions(truth: Truth) -> Iterator[str]:
    for record, decision in truth.coverage.decisions.items():
        margin = (
            "" if decision.margin is None else f"; the values it chose between are at most {decision.margin:.1e} apart"
        )
        yield (
            f"{record} would decide otherwise without rounding, in {decision.count:,} of {decision.total:,} "
            f"elements{margin}"
        )


def _describe_coverage(truth: Truth) -> Iterator[str]:
    coverage = truth.coverage
    yield f"{coverage.replayed} of {coverage.call_count} calls replayed in float64"
    if len(coverage.ranks) > 1:
        yield f"replayed together: ranks {', '.join(map(str, coverage.ranks))}"
    yield from coverage.remarks
    if coverage.random:
        yield f"{count_noun(coverage.random, 'random result is', 'random results are')} taken as recorded"
    for record, reason in list(truth.unchecked.items())[:_MAX_GAPS]:
        yield f"not checked: {record} ({reason})"
    if len(truth.unchecked) > _MAX_GAPS:
        yield f"… and {len(truth.unchecked) - _MAX_GAPS} more"
    yield from _advise_meanings(coverage.without_meaning)


def _advise_meanings(calls: dict[str, str]) -> Iterator[str]:
    """How to have kernels checked that are no function of torch."""
    named = list(calls)[:_MAX_GAPS]
    if named:
        more = " …" if len(calls) > len(named) else ""
        yield (
            f"no function of torch: {', '.join(named)}{more}. To have this checked, say what it computes: "
            f'@tensorprobe.meaning("{named[0]}") on a plain function of torch, in a file for --meaning'
        )
