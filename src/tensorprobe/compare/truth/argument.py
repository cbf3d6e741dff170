"""What goes into two calls, place by place: frameworks name and order it otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from tensorprobe.compare.match.argument import describe_arguments, find_changed, is_size
from tensorprobe.compare.match.setting import make_values
from tensorprobe.compare.match.slot_pair import pair_slots
from tensorprobe.compare.result import ValuePair
from tensorprobe.compare.truth.same_array import SURELY_MASKED
from tensorprobe.replay.true_step import TrueCall
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import PlainSlot, TensorSlot
from tensorprobe.word.vocabulary import is_of_backward


class Arguments:
    """Of the calls of two runs."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._runs = reference, candidate

    def operands(self, reference: TrueCall, candidate: TrueCall) -> Mapping[str, str] | None:
        """Where the reference's call has what the candidate's has in each place; None if one was not recorded."""
        calls = self._find(reference, candidate)
        if calls is None:
            return None
        return {
            second.slot: first.slot
            for first, second in pair_slots(*calls)
            if isinstance(first, TensorSlot) and isinstance(second, TensorSlot)
        }

    def describe_differing(
        self, reference: TrueCall, candidate: TrueCall, *, has_same_shape: bool, or_left_out: bool
    ) -> str:
        """What is no tensor and not the same, in words, but for what only gradients depend on. `has_same_shape`: so
        have the results, and a size says no more. `or_left_out`: also what only one is given."""
        calls = self._find(reference, candidate)
        if calls is None:
            return _describe_inside(reference, candidate)
        values = make_values(pair_slots(*calls), calls)
        plain = [value for value in values if value.is_input and not value.is_tensor and not _is_dtype(value)]
        told = [value for value in plain if not (has_same_shape and is_size(value, calls))]
        told = [value for value in told if not _is_of_backward(value, calls) and not _is_masked(value)]
        return describe_arguments(find_changed(told, or_left_out))

    def _find(self, reference: TrueCall, candidate: TrueCall) -> tuple[Call, Call] | None:
        found = [run.by_name.get(call.name) for run, call in zip(self._runs, (reference, candidate), strict=True)]
        return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _describe_inside(reference: TrueCall, candidate: TrueCall) -> str:
    """Of two operators that were seen inside of calls: both have all arguments, by the same names."""
    if not (reference.prefix == candidate.prefix == "Ops"):
        return ""
    first, second = reference.arguments, candidate.arguments
    names = [name for name in second if name in first and first[name] != second[name]]
    return ", ".join(f"{name}={second[name]!r} where the reference had {first[name]!r}" for name in names)


def _is_of_backward(value: ValuePair, calls: tuple[Call, Call]) -> bool:
    slots = zip(calls, (value.reference, value.candidate), strict=True)
    return any(slot is not None and is_of_backward(call, slot.slot) for call, slot in slots)


def _is_masked(value: ValuePair) -> bool:
    """Two numbers that stand for minus infinity are one: what they are put in place of has no share in a softmax."""
    slots = [slot for slot in (value.reference, value.candidate) if isinstance(slot, PlainSlot)]
    return len(slots) == 2 and all(isinstance(slot.value, float) and slot.value <= SURELY_MASKED for slot in slots)


def _is_dtype(value: ValuePair) -> bool:
    """Another precision means the same."""
    slots = [slot for slot in (value.reference, value.candidate) if isinstance(slot, PlainSlot)]
    return any(slot.type.rpartition(".")[2] == "dtype" for slot in slots)
