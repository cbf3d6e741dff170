"""Calls that only one run makes, and that need no partner, because nothing comes of them.

Two frameworks do not do the same between two layers: one casts to the dtype that a tensor has already, calls a dropout
that drops nothing, counts its batches, makes tensors of data, or averages weights that nobody asked for. And what is a
function here is a module there: a module whose calls are all paired is compared through them. Inside one framework such
a call was put in or left out by somebody, and is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tensorprobe.compare.match.side import Side
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.content import numbers_of
from tensorprobe.run.nesting import Nesting
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a


class Idle(NamedTuple):
    """Why a call needs no partner."""

    why: str
    is_passed_by: bool = False
    """What comes out of such a call was made by another."""


PASSES_ON = Idle("returns its input unchanged", is_passed_by=True)
LEADS_NOWHERE = Idle("nothing uses its result")
CONTAINED = Idle("a module that only this run has; what it calls is paired", is_passed_by=True)
MAKES_DATA = Idle("makes a tensor of the program's data")
INSIDE = Idle("inside a module that is one piece in the other run")


class IdleFinder:
    """Finds the calls without a partner that need none, and why. `paired` has the partners, calls of the other run."""

    def __init__(self, side: Side, paired: Mapping[int, int], other: Side) -> None:
        self._side = side
        self._paired = paired
        self._other = other
        self._other_nesting = Nesting(other.run)
        self._found: dict[int, Idle] = {}
        self._used = _used_results(side)
        self._nesting = Nesting(side.run)

    def find(self) -> dict[int, Idle]:
        free = [number for number in self._side.forward if number not in self._paired]
        known = -1
        while known < len(self._found):  # what is found may let more be found
            known = len(self._found)
            for number in reversed(free):  # a result that only idle calls use is used by none
                call = self._side.calls[number]
                if number not in self._found and passes_on(call):
                    self._add(number, PASSES_ON)
                elif number not in self._found and makes_data(call):
                    self._add(number, MAKES_DATA)
                elif number not in self._found and call.kind == "api" and self._leads_nowhere(call):
                    self._add(number, LEADS_NOWHERE)
            for number in free:  # a module comes after what it contains
                call = self._side.calls[number]
                if number not in self._found and call.kind == "module" and self._is_contained(call):
                    self._add(number, CONTAINED)
        for number in free:
            if number not in self._found and self._is_inside(self._side.calls[number]):
                self._add(number, INSIDE)
        return self._found

    def _is_inside(self, call: Call) -> bool:
        """A cell of a recurrent layer, where the other run's layer contains nothing that was recorded."""
        for outer in self._nesting.ancestors(call):
            partner = self._paired.get(self._side.number_of[outer.name])
            if partner is not None:
                return call.kind == "module" and not self._other_nesting.inner(self._other.calls[partner])
        return False

    def _add(self, number: int, idle: Idle) -> None:
        self._found[number] = idle
        behind = self._side.other_direction(self._side.calls[number], BACKWARD)
        if behind is not None and behind not in self._paired:
            self._found[behind] = idle

    def _leads_nowhere(self, call: Call) -> bool:
        if self._side.other_direction(call, BACKWARD) is not None or not self._side.has_flow:
            return False
        return all(self._side.number_of.get(user) in self._found for user in self._used.get(call.name, ()))

    def _is_contained(self, call: Call) -> bool:
        inner = [self._side.number_of[one.name] for one in self._nesting.inner(call) if one.direction == FORWARD]
        return bool(inner) and all(number in self._paired or number in self._found for number in inner)


def makes_data(call: Call) -> bool:
    """Does it make a tensor of what is none? MindSpore has no record of that."""
    if call.kind != "api" or not is_a(word_of(call), "data"):
        return False
    return all(slot.type == "numpy.ndarray" for slot in call.tensors if slot.is_input)


def passes_on(call: Call) -> bool:
    """Does it return the numbers that it was given, in their order, in the same dtype, with their gradient?"""
    if not is_a(word_of(call), "passing"):
        return False
    given = next((slot for slot in call.tensors if slot.is_input), None)
    results = [slot for slot in call.tensors if not slot.is_input]
    return given is not None and bool(results) and _is_same(given, results[0])


def _is_same(given: TensorSlot, result: TensorSlot) -> bool:
    if given.max is None and given.checksum is None:
        return False
    loses_gradient = given.requires_grad is True and result.requires_grad is False
    return not loses_gradient and given.dtype == result.dtype and numbers_of(given) == numbers_of(result)


def _used_results(side: Side) -> dict[str, list[str]]:
    """For each call the calls and modules that take, or return, what it made."""
    found: dict[str, list[str]] = {}
    for call in side.calls:
        for slot in call.tensors:
            if slot.source is not None and slot.source != call.name and (slot.is_input or call.kind == "module"):
                found.setdefault(slot.source, []).append(call.name)
    return found
