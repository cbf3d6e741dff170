"""What could not be compared although the results of the reference depend on it.

Its results are the loss, what nobody consumes, the gradients of parameters and what was saved; so every value that a
call of the program takes or returns leads to one, and counts. Not the values of calls that the framework makes itself,
which are kept out of the verdict. A value has several names, as the result of one call and an argument of the next: it
is enough that it was compared under one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tensorprobe.compare.judge.evidence import Finding
from tensorprobe.compare.judge.status import is_unknown
from tensorprobe.compare.match.alignment import find_holder
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import FORWARD
from tensorprobe.store.reader import RankDump
from tensorprobe.store.slot import TensorSlot

_Identity = tuple[str, int | None]


@dataclass(frozen=True)
class Uncompared:
    """A value of the reference, and why it was not compared."""

    name: str
    """`Functional.relu.0.forward.output.0`"""
    reason: str


def find_uncompared(finding: Finding) -> list[Uncompared]:
    """In the order of execution; then the results that only the reference has."""
    own = [(pair, value) for pair in finding.pairs if not pair.is_framework_made for value in pair.values]
    found = [(pair, value) for pair, value in own if is_unknown(value)]
    if found:
        compared = {
            _identify(pair, value, finding) for pair, value in own if value.status in ("equal", "close", "different")
        } - {None}
        found = [(pair, value) for pair, value in found if _identify(pair, value, finding) not in compared]
    listed = [(find_holder(pair.match.reference, value.reference), value) for pair, value in found]
    return [
        *(Uncompared(f"{call.name}.{value.slot}", value.reason) for call, value in listed),
        *_iter_lone_results(finding),
    ]


def _identify(pair: PairedCall, value: ValuePair, finding: Finding) -> _Identity | None:
    """The pair of calls that made it, and its size, where that pair has one result of this size; else None."""
    slots = value.reference, value.candidate
    if not isinstance(slots[0], TensorSlot) or not isinstance(slots[1], TensorSlot):
        return None
    maker: PairedCall | None = pair
    if value.is_input:
        maker = finding.reference.pair(finding.reference.flow.producer(slots[0]))
        if maker is not finding.candidate.pair(finding.candidate.flow.producer(slots[1])):
            return None
    if maker is None or maker.match.is_group:
        return None
    size = slots[0].element_count
    sizes = Counter(slot.element_count for slot in maker.reference.tensors if not slot.is_input)
    return (maker.reference.name, size) if sizes[size] == 1 else None


def _iter_lone_results(finding: Finding) -> Iterator[Uncompared]:
    """Results of calls that the candidate does not make, and that no recorded call uses."""
    if not _is_recorded_alike(finding):
        return
    flow, calls = finding.reference.flow, finding.reference.run.calls
    used = {slot.source for call in calls for slot in call.tensors if slot.source != call.name}
    for unpaired in finding.alignment.only_reference:
        call = unpaired.call
        if call.direction != FORWARD or call.caller is not None or unpaired.is_idle or call.name in used:
            continue
        for slot in call.tensors:
            if not slot.is_input and flow.producer(slot) in (None, call):
                yield Uncompared(f"{call.name}.{slot.slot}", "only in the reference")


def _is_recorded_alike(finding: Finding) -> bool:
    """Could both runs have recorded the same calls? Else that one is missing says nothing."""
    ranks = finding.reference.run.rank, finding.candidate.run.rank
    if not finding.reference.run.has_flow or ranks[0].header.get("level") != ranks[1].header.get("level"):
        return False
    return not any(is_unfinished(rank) or is_filtered(rank) for rank in ranks)


def is_unfinished(rank: RankDump) -> bool:
    """Killed, ended by an exception, or still running: what follows is not known."""
    return not rank.is_complete or bool(rank.run.get("ended"))


def is_filtered(rank: RankDump) -> bool:
    """Was the capture told to leave calls out? Then a backward may have run unrecorded."""
    coverage = rank.run.get("coverage")
    return not isinstance(coverage, dict) or bool(coverage.get("filtered"))


def contradicts_record(finding: Finding) -> bool:
    """Is a file lost, or does one contradict its record? Neither a replay nor a statistic shows it."""
    values = (value for pair in finding.pairs if not pair.is_framework_made for value in pair.values)
    return any(value.measurement is not None and value.measurement.fallback is not None for value in values)
