"""What a step is for, by its statistics: its loss, the gradients of its parameters, and what nobody takes. Where two
programs are written differently, their calls are paired by guesses; what they are for needs none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tensorprobe.compare.judge.content import Contents
from tensorprobe.compare.judge.gradient_comparison import SameGradients, compare_gradients
from tensorprobe.compare.judge.joined_run import join_parts
from tensorprobe.compare.judge.other_precision import find_other_precision
from tensorprobe.compare.judge.own_record import is_measured, is_own_api, list_own, read_number
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.backward_pass import read_passes
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot

_UNITS_OF_FLOAT32 = 512
_UNITS = 4
"""Of the coarsest dtype: as a rule the rounding of a step's results is much less."""
_FEWER_UNITS = 2
"""Of the loss: it is a mean of many numbers, each rounded on its own."""
_UNITS_OF_GRADIENTS = 64
"""Of a coarse dtype, of single gradients; of all together a quarter of it."""
STRICT = 8
"""So much less is allowed where there is another reason to think that they differ."""


@dataclass(frozen=True)
class Agreement:
    """Two steps have the same results, as far as these are recorded."""

    loss_error: float
    gradients: SameGradients
    is_coarse: bool
    """By no more than what a coarse dtype can tell."""


def find_agreement(reference: Run, candidate: Run, *, is_strict: bool = False) -> Agreement | None:
    """Have both the same loss and the same gradients, within rounding? None also where that is not recorded."""
    tolerance = find_tolerance(reference, candidate)
    is_coarse = tolerance > _UNITS_OF_FLOAT32 * 2.0**-24
    tolerance /= STRICT if is_strict and not is_coarse else 1
    loss_error = find_loss_error(reference, candidate)
    allowed_loss = tolerance / _FEWER_UNITS if is_coarse else tolerance
    if loss_error is None or not loss_error <= allowed_loss or any(find_lone_ends(reference, candidate)):
        return None
    allowed = tolerance * (_UNITS_OF_GRADIENTS / _UNITS if is_coarse else 1)
    same = compare_gradients(reference, candidate, allowed).agree(allowed / 4 if is_coarse else allowed)
    return None if same is None else Agreement(loss_error, same, is_coarse)


def find_loss_error(reference: Run, candidate: Run) -> float | None:
    """Of the candidate's, relative to their size; None where one is not recorded."""
    first, second = add_losses(reference), add_losses(candidate)
    if first is None or second is None:
        return None
    return abs(first - second) / (max(abs(first), abs(second)) or 1.0)


def find_differing(reference: Run, candidate: Run) -> tuple[list[TensorSlot], list[TensorSlot]]:
    """The gradients of the same parameters that are not the same; where there are none, those that the other run has
    not."""
    return compare_gradients(reference, candidate, find_tolerance(reference, candidate)).find_differing()


def find_lone_ends(reference: Run, candidate: Run) -> tuple[set[str], set[str]]:
    """The calls whose results no call takes and the other run has not, such as those of an evaluation. What only one
    run computes besides has no effect."""
    tolerance = find_tolerance(reference, candidate)
    joined = join_parts(reference), join_parts(candidate)
    lone = []
    for run, other in (joined, reversed(joined)):
        known = Contents(_iter_values(other), tolerance, sees_order=True)
        lone.append([(call.name, slot) for call, slot in _find_ends(run) if not known.has(slot)])
    counts = [{slot.element_count for _, slot in ends} for ends in lone]
    first, second = ({name for name, slot in ends if slot.element_count in counts[0] & counts[1]} for ends in lone)
    return first, second


def _iter_values(run: Run) -> Iterator[TensorSlot]:
    return (slot for call in list_own(run, FORWARD) for slot in call.tensors)


def _find_ends(run: Run) -> list[tuple[Call, TensorSlot]]:
    taken = {slot.source for call in run.calls for slot in call.tensors if slot.is_input} | _name_roots(run)
    calls = [call for call in list_own(run, FORWARD) if call.name not in taken]
    results = [(call, slot) for call in calls for slot in call.tensors if not slot.is_input]
    is_passed_on = {id(slot) for call, slot in results if slot.source not in (None, call.name)}
    found = [(call, slot) for call, slot in results if is_measured(slot) and id(slot) not in is_passed_on]
    reports = _find_reports(run)
    return [
        (call, slot)
        for call, slot in found
        if slot.parameter is None  # what an update leaves
        and not (slot.element_count == 1 and call.name in reports)
    ]


def _find_reports(run: Run) -> set[str]:
    """The calls after the backward that are given gradients and parameters alone: what they make of these and nobody
    takes, such as a norm, is only looked at."""
    flow = Flow(run)
    last = max((call.position for call in run.calls if call.direction == BACKWARD), default=math.inf)
    found: set[str] = set()
    for call in list_own(run, FORWARD):
        given = [slot for slot in call.tensors if slot.is_input]
        if call.position > last and given and all(_is_looked_at(slot, flow.producer(slot), found) for slot in given):
            found.add(call.name)
    return found


def _is_looked_at(slot: TensorSlot, maker: Call | None, reports: Collection[str]) -> bool:
    """Is it a parameter, a gradient, or made of these?"""
    if maker is None:
        return slot.parameter is not None
    return maker.name in reports or not is_own_api(maker, FORWARD)


def find_tolerance(reference: Run, candidate: Run) -> float:
    """How far apart the same values of two runs may be, by the coarsest dtype that both have, or that one is in."""
    units = []
    for run in (reference, candidate):
        slots = (slot for call in run.calls for slot in call.tensors if not slot.is_input)
        units.append(max((unit_roundoff(slot.dtype) or 0.0 for slot in slots), default=0.0))
    precision = find_other_precision(reference, candidate)
    return max(_UNITS_OF_FLOAT32 * 2.0**-24, _UNITS * (min(units) if precision is None else precision.unit))


def find_losses(run: Run) -> list[tuple[Call, TensorSlot]]:
    """What gradients were asked of; where that is not recorded, the last single number that was computed before they
    came: clipping makes others of them."""
    own = [call for call in run.calls if call.caller is None and call.direction == FORWARD]
    numbers = [(call, slot) for call in own for slot in _iter_numbers(call)]
    roots = _name_roots(run)
    last = max((call.position for call in run.calls if call.direction == BACKWARD), default=math.inf)
    before = [(call, slot) for call, slot in numbers if call.position < last]
    return [(call, slot) for call, slot in numbers if call.name in roots] or before[-1:] or numbers[-1:]


def _name_roots(run: Run) -> set[str | None]:
    passes = [one for one in read_passes(run.rank.run) if one.accumulates]
    return {root.source for one in passes for root in one.roots if root is not None}


def add_losses(run: Run) -> float | None:
    """The loss of the step: of a batch that is taken in parts, the sum of theirs."""
    losses = find_losses(run)
    return math.fsum(read_number(slot.max) for _, slot in losses) if losses else None


def _iter_numbers(call: Call) -> Iterator[TensorSlot]:
    return (slot for slot in call.tensors if not slot.is_input and slot.element_count == 1 and is_measured(slot))
