"""What is said besides the sentence of a comparison by truth: what was not executed again or compared, what served both
runs, and what is coarse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorprobe.compare.truth.judgement import SIDES, Judgement
from tensorprobe.compare.truth.precision import find_coarser, is_coarser_throughout
from tensorprobe.compare.truth.value_index import other_side
from tensorprobe.model.count import count_noun

MAX_NAMED = 4


def word_coverage(judgement: Judgement) -> Iterator[str]:
    scale = judgement.steps[SIDES[1]].loss_scale
    if scale != 1:
        yield (
            f"the candidate's loss and its gradients are {scale:,.6g} times those of the reference; this is undone "
            "before the update"
        )
    if len(judgement.borrowers) == 1:
        side = judgement.borrowers[0]
        yield (
            f"the {side} has statistics only: it was executed again with the tensors of the {other_side(side)} "
            "that have the same statistics"
        )
    for side, step in judgement.steps.items():
        own = list(step.coverage.own_backwards)
        if own:
            functions = count_noun(len(own), "Function")
            yield (
                f"the backward of {functions} of the {side} is not the derivative of its forward: the recorded "
                f"gradients were used (the first is {own[0]})"
            )
    gaps = judgement.gaps
    if gaps:
        first, reason = next(iter(gaps.items()))
        calls = count_noun(len(gaps), "call")
        yield f"not executed again: {calls}, recorded results used instead ({first}: {reason})"
    errors = [pair.error or 0.0 for pair in judgement.unequal if not judgement.differences]
    if errors:
        parameters = count_noun(len(errors), "parameter differs", "parameters differ")
        yield (
            f"{parameters} at the start of this step, by at most {max(errors):.1g}: "
            "both runs were executed again with the reference's"
        )
    unpaired = judgement.observables.unpaired_gradients
    held = {value.parameter: value for value in judgement.steps["candidate"].leaves if value.parameter is not None}
    other = [one for one in unpaired if one.parameter in held and held[one.parameter].array.shape == one.array.shape]
    if other and judgement.is_equal:
        names = list_names([str(value.parameter) for value in other])
        yield f"{names} started from different values, with no effect on the loss and the other gradients"
        unpaired = [one for one in unpaired if one not in other]
    if unpaired:
        names = list_names([value.parameter or value.slot for value in unpaired])
        yield f"not compared: the gradient of {names} of the reference: no counterpart was found in the candidate"
    for side, count in judgement.replaced.items():
        if count:
            values = count_noun(count, f"value of the {side} is that", f"values of the {side} are those")
            yield f"{values} of the {other_side(side)}, rounded: both runs were executed again with the unrounded ones"


def word_coarse_kernels(judgement: Judgement) -> Iterator[str]:
    for side in SIDES:
        for finding in list(judgement.coarse_kernels(side))[:1]:
            assert finding.judgement is not None
            numbers = f"{finding.judgement.recorded:.9g} instead of {finding.judgement.true:.9g}"
            truth = judgement.truths[side]
            results = "loss and parameter gradients are" if truth.parameter_gradients else "loss is"
            yield (
                f"coarse: {finding.record} of the {side} gives {numbers} ({finding.slot}); "
                f"the {side}'s {results} still accurate to {truth.worst_error:.0e}"
            )


def word_coarser_values(judgement: Judgement) -> Iterator[str]:
    """Which values the candidate alone computes in a coarser dtype: a cast that was left out, or put in."""
    coarser = find_coarser(judgement.counterparts)
    if coarser and not is_coarser_throughout(judgement.counterparts, coarser):
        first = coarser[0]
        values = count_noun(len(coarser), "value")
        where = f" in module {first.call.module_path}" if first.call.module_path else ""
        yield (
            f"precision: the candidate computes {values} in a lower-precision dtype than the reference, the first at "
            f"{first.call.name}{where} ({first.candidate_dtype} instead of {first.reference_dtype})"
        )


def list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
