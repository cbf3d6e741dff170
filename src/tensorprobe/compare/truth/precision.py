"""Two runs that mean the same, of which one loses its digits: where?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.compare.truth.call_likeness import unlikeness, word_of
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Truth
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue

_EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_CASTS = ("to", "half", "bfloat16", "type", "type_as")
"""What the program itself casts, whether in a region of autocast or not."""
_TIMES = 30.0
"""An error that is so many times that of the other run is not only rounded in another order."""
_UNITS = 500.0
"""And it is larger than so many roundings."""
_LOCAL = 0.3
"""If more than this share of the values is coarser in one run, that is how it was meant to run."""


@dataclass(frozen=True)
class PrecisionLoss:
    """A call of the candidate whose result is far less exact than the same value of the reference."""

    reference: TrueCall
    candidate: TrueCall
    slot: str
    reference_error: float
    candidate_error: float


def find_precision_loss(counterparts: Counterparts, truths: dict[str, Truth]) -> PrecisionLoss | None:
    """The first call where the candidate's error grows far beyond that of the same value in the reference."""
    usual = {side: _usual_dtype(step) for side, step in counterparts.steps.items()}
    coarser = find_coarser(counterparts)
    if usual["reference"] != usual["candidate"] or is_coarser_throughout(counterparts, coarser):
        return None
    # from the first one on that autocast has made so, it was asked for, and what is computed from it is no finer
    asked = [one.call.position for one in coarser if one.call.in_autocast and word_of(one.call) not in _CASTS]
    first = min(asked, default=len(counterparts.steps["candidate"].calls))
    unit = _EPSILONS.get(usual["candidate"], 0.0)
    errors = {side: _errors_of(truth) for side, truth in truths.items()}
    for call, slot, places in _iter_pairs(counterparts):
        if call.position >= first:
            break
        own = errors["candidate"].get((call.name, slot))
        known = [errors["reference"].get((maker.name, other)) for maker, other in places]
        other = max((error for error in known if error is not None), default=None)
        if own is not None and other is not None and own > _TIMES * max(other, unit / 8) and own > _UNITS * unit:
            return PrecisionLoss(places[0][0], call, slot, other, own)
    return None


def _usual_dtype(step: TrueStep) -> str:
    counts = Counter(value.dtype for value in step.values if value.is_floating)
    return counts.most_common(1)[0][0] if counts else ""


@dataclass(frozen=True)
class CoarserValue:
    """A value that the candidate has in a coarser dtype than the reference."""

    call: TrueCall
    reference_dtype: str
    candidate_dtype: str


def find_coarser(counterparts: Counterparts) -> list[CoarserValue]:
    """As they were computed. What the reference has in both dtypes is no coarser in the candidate, unless both make it
    by a call of a kind."""
    found, values = [], counterparts.steps["reference"].values
    for call, slot, places in _iter_pairs(counterparts):
        value = counterparts.steps["candidate"].values[call.outputs[slot]]
        maker, name = places[0]
        is_alike = word_of(maker) == word_of(call)
        others = [values[maker.outputs[name]]] if is_alike else counterparts.of("candidate", value)
        other = max((one.dtype for one in others), key=lambda dtype: _EPSILONS.get(dtype, 0.0))
        if _EPSILONS.get(value.dtype, 0.0) > _EPSILONS.get(other, 0.0):
            found.append(CoarserValue(call, other, value.dtype))
    return found


def is_coarser_throughout(counterparts: Counterparts, coarser: Sequence[CoarserValue]) -> bool:
    """Is that how the candidate was meant to run?"""
    return bool(coarser) and len(coarser) > _LOCAL * sum(1 for _ in _iter_pairs(counterparts))


def _iter_pairs(counterparts: Counterparts) -> Iterator[tuple[TrueCall, str, list[tuple[TrueCall, str]]]]:
    """The results of the candidate, and where the reference makes what has the same truth: by the most similar call
    first. There may be several: an update by a gradient that is zero, but for rounding, means what it began with."""
    reference = counterparts.steps["reference"]
    candidate = counterparts.steps["candidate"]
    for call in candidate.calls.values():
        for slot, number in call.outputs.items():
            value = candidate.values[number]
            if not value.is_floating or counterparts.is_plain("candidate", value):
                continue
            partners = counterparts.of("candidate", value)
            if any(_is_rounded_there(one, reference, value.dtype) for one in partners):
                continue
            places = [place for one in partners for place in _places_of(one, reference)]
            if places:
                yield call, slot, sorted(places, key=lambda place: unlikeness(call, place[0]))


def _is_rounded_there(value: TrueValue, step: TrueStep, dtype: str) -> bool:
    """Is it finer, and taken by a call that computes in this dtype, as autocast rounds what a product takes?"""
    if _EPSILONS.get(value.dtype, 0.0) >= _EPSILONS.get(dtype, 0.0):
        return False
    users = (user for user in step.users.get(value.number, ()) if user.in_autocast and word_of(user) not in _CASTS)
    return any(step.values[number].dtype == dtype for user in users for number in user.outputs.values())


def _places_of(value: TrueValue, step: TrueStep) -> Iterator[tuple[TrueCall, str]]:
    """The call that made it, and as which of its results."""
    maker = step.maker(value)
    if maker is not None:
        yield from ((maker, slot) for slot, number in maker.outputs.items() if number == value.number)


def _errors_of(truth: Truth) -> dict[tuple[str, str], float]:
    return {(row.record, row.slot): row.accumulated.relative for row in truth.rows if row.accumulated is not None}
