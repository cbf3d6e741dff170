"""Operands in another order: `x + y` is `y + x`, and their gradients are in the other order too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorprobe.compare.match.alignment import Alignment, Match
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a


def cross_operands(alignment: Alignment) -> Alignment:
    """The same, with the slots that stand crosswise; what a mapping file says of slots comes first."""
    finder = OperandFinder(alignment)
    crossed = {}
    for match in alignment.matches:
        if not match.is_group:
            found = finder.find_crossed(match.reference[0], match.candidate[0])
            if found:
                crossed[match.reference[0].name] = dict(found)
    return replace(alignment, slots={**crossed, **alignment.slots}) if crossed else alignment


class OperandFinder:
    """Knows of every call in which match it is."""

    def __init__(self, alignment: Alignment) -> None:
        self._match_of: tuple[dict[str, Match], dict[str, Match]] = ({}, {})
        for match in alignment.matches:
            for names, calls in zip(self._match_of, (match.reference, match.candidate), strict=True):
                for call in calls:
                    names[call.name] = match
        self._idle = tuple(
            {unpaired.call.name: unpaired.call for unpaired in lonely if unpaired.is_passed_by}
            for lonely in (alignment.only_reference, alignment.only_candidate)
        )

    def find_crossed(self, reference: Call, candidate: Call) -> Mapping[str, str]:
        """The slots of a pair that stand against each other crosswise; none as a rule."""
        if reference.kind != "api" or not is_a(word_of(reference), "commutative"):
            return {}
        forward, other_forward = self._forward(reference, 0), self._forward(candidate, 1)
        if forward is None or other_forward is None:
            return {}
        ours, theirs = _operands(forward), _operands(other_forward)
        if len(ours) != 2 or len(theirs) != 2:
            return {}
        is_straight = self._is_same(ours[0], theirs[0]) and self._is_same(ours[1], theirs[1])
        if is_straight or not (self._is_same(ours[0], theirs[1]) and self._is_same(ours[1], theirs[0])):
            return {}
        names = [_slot_in(reference, slot) for slot in ours]
        other_names = [_slot_in(candidate, slot) for slot in theirs]
        return {names[0]: other_names[1], names[1]: other_names[0]}

    def _forward(self, call: Call, side: int) -> Call | None:
        if call.direction == FORWARD:
            return call
        match = self._match_of[side].get(call.in_direction(FORWARD))
        if match is None or match.is_group:
            return None
        return (match.reference, match.candidate)[side][0]

    def _is_same(self, reference: TensorSlot, candidate: TensorSlot) -> bool:
        """From the same producer, or from none."""
        source, other_source = self._source(reference, 0), self._source(candidate, 1)
        if reference.shape != candidate.shape or (source is None) != (other_source is None):
            return False
        if source is None or other_source is None:
            return True
        match = self._match_of[0].get(source)
        return match is not None and match is self._match_of[1].get(other_source)

    def _source(self, slot: TensorSlot, side: int) -> str | None:
        """Past calls that only pass it on."""
        source = slot.source
        for _ in self._idle[side]:
            idle = self._idle[side].get(source or "")
            if idle is None:
                break
            source = next((one.source for one in idle.tensors if one.is_input), None)
        return source


def _operands(call: Call) -> list[TensorSlot]:
    return [slot for slot in call.tensors if slot.is_input]


def _slot_in(call: Call, operand: TensorSlot) -> str:
    """Where an operand of the forward call, or in a backward call its gradient, stands."""
    if call.direction == BACKWARD and operand.slot.startswith("input."):
        return operand.slot.replace("input.", "output.", 1)
    return operand.slot
