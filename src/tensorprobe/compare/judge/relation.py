"""Are two runs the same program at all? If not, any call that is named as wrong is chance.

Two programs that have nothing to do with each other still share words and shapes: a linear, a mean, a gradient of 1.
They are taken for different ones when most of the calls of both have no partner, and neither has many tensors to hold
against the other's. One of the two is not enough: a run that was cut off or recorded in part has few calls of the
other, but nearly all its tensors can be compared; of a model with another width none can, but the calls are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tensorprobe.compare.match.alignment import Alignment
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.measure.shape import has_same_layout
from tensorprobe.compare.result import NO_ANSWER, Verdict
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot

_LEAST_CALLS = 0.5
_LEAST_TENSORS = 0.25


@dataclass(frozen=True)
class Relation:
    """How much of two runs can be held against each other; of each pair of numbers the first is the reference's."""

    paired_calls: tuple[int, int]
    calls: tuple[int, int]
    """That need a partner."""
    paired_tensors: int
    """Of the same shape, in the same place of paired calls."""
    tensors: tuple[int, int]

    @property
    def is_same_program(self) -> bool:
        share = sum(self.paired_calls) / max(sum(self.calls), 1)
        tensor_share = max(self.paired_tensors / max(count, 1) for count in self.tensors)
        return share >= _LEAST_CALLS or tensor_share >= _LEAST_TENSORS


def relate_runs(pairs: Sequence[PairedCall], alignment: Alignment) -> Relation:
    """Counted before anything is measured. Calls that the framework makes itself do not count."""
    matches = [match for match in alignment.matches if match.reference[-1].caller is None]
    paired = (
        [call for match in matches for call in match.reference],
        [call for match in matches for call in match.candidate],
    )
    lone = [
        [unpaired.call for unpaired in side if unpaired.call.caller is None and not unpaired.is_idle]
        for side in (alignment.only_reference, alignment.only_candidate)
    ]
    return Relation(
        paired_calls=(len(paired[0]), len(paired[1])),
        calls=(len(paired[0]) + len(lone[0]), len(paired[1]) + len(lone[1])),
        paired_tensors=sum(map(_count_paired_tensors, pairs)),
        tensors=(_count_tensors([*paired[0], *lone[0]]), _count_tensors([*paired[1], *lone[1]])),
    )


def _count_paired_tensors(pair: PairedCall) -> int:
    if pair.is_framework_made:
        return 0
    slots = ((value.reference, value.candidate) for value in pair.values)
    return sum(
        isinstance(first, TensorSlot) and isinstance(second, TensorSlot) and has_same_layout(first, second)
        for first, second in slots
    )


def _count_tensors(calls: Iterable[Call]) -> int:
    return sum(len(call.tensors) for call in calls)


def doubt_verdict(verdict: Verdict, relation: Relation) -> Verdict:
    """The verdict; or, if these are two programs, that they are."""
    if verdict.kind in NO_ANSWER or relation.is_same_program:
        return verdict
    paired, calls, tensors = relation.paired_calls, relation.calls, relation.tensors
    headline = (
        f"These do not look like the same program: {paired[0]:,} of {calls[0]:,} calls of the reference and "
        f"{paired[1]:,} of {calls[1]:,} of the candidate have a partner, and {relation.paired_tensors:,} of "
        f"{tensors[0]:,} and {tensors[1]:,} tensors can be compared."
    )
    evidence = (
        "are these the two folders that you meant? Each has to be a run of the same model, at the same level",
        "if it is the same model, a mapping file says which modules and calls belong together: --mapping",
        f"compared anyway: {verdict.headline}",
    )
    return replace(verdict, kind="unrelated", headline=headline, evidence=evidence, call=None, suspects=())
