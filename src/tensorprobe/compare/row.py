"""A comparison as a table: one row for each pair of values, one for each call without a partner.

CSV, XLSX, JSON and pandas share these rows and cannot disagree. A field here is the column there, under the same name.
Text is as the dump has it: who writes it escapes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any

from tensorprobe.compare.match.alignment import Unpaired, find_holder
from tensorprobe.compare.result import CallResult, Comparison, RankResult, ValuePair
from tensorprobe.model.record import Number
from tensorprobe.run.call import Call
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot

_MAX_VALUE_TEXT = 1000


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class Row:
    """One line of the table; None is an empty cell."""

    step: int | None
    rank: str
    """The folder of the reference: `rank3`, `rank`, `proc123`."""
    reference_name: str | None
    candidate_name: str | None
    status: str
    role: str
    """That of the call, not of this value alone."""
    error: float | None = None
    tolerance: float | None = None
    reason: str | None = None
    because: str | None = None
    """Why the call has its role."""
    basis: str | None = None
    rule: str | None = None
    """What paired the two calls."""
    module_path: str | None = None
    direction: str | None = None
    caller: str | None = None
    """The part of the framework that made the call itself; such calls are kept out of the verdict."""
    reference_dtype: str | None = None
    candidate_dtype: str | None = None
    reference_shape: tuple[int, ...] | None = None
    candidate_shape: tuple[int, ...] | None = None
    reference_requires_grad: bool | None = None
    candidate_requires_grad: bool | None = None
    reference_value: str | None = None
    """An argument that is no tensor, as text."""
    candidate_value: str | None = None
    is_equal: bool | None = None
    cosine: float | None = None
    euclidean_distance: float | None = None
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_relative_error: float | None = None
    relative_l2: float | None = None
    relative_max: float | None = None
    within_1e_3: float | None = None
    within_5e_3: float | None = None
    allclose: bool | None = None
    allclose_share: float | None = None
    max_ulp: int | None = None
    nan_only_reference: int | None = None
    nan_only_candidate: int | None = None
    inf_only_reference: int | None = None
    inf_only_candidate: int | None = None
    nan_both: int | None = None
    element_count: int | None = None
    worst_index: tuple[int, ...] | None = None
    worst_reference: float | complex | int | bool | None = None
    worst_candidate: float | complex | int | bool | None = None
    reference_max: Number = None
    candidate_max: Number = None
    reference_min: Number = None
    candidate_min: Number = None
    reference_mean: Number = None
    candidate_mean: Number = None
    reference_norm: Number = None
    candidate_norm: Number = None
    max_difference: Number = None
    """The candidate's statistic minus the reference's."""
    min_difference: Number = None
    mean_difference: Number = None
    norm_difference: Number = None
    max_relative_difference: float | None = None
    """The size of that difference over the size of the reference's."""
    min_relative_difference: float | None = None
    mean_relative_difference: float | None = None
    norm_relative_difference: float | None = None
    reference_checksum: str | None = None
    candidate_checksum: str | None = None
    reference_data_name: str | None = None
    """The file of the tensor, in the folder dump_tensor_data of its rank."""
    candidate_data_name: str | None = None
    reference_location: str | None = None
    candidate_location: str | None = None


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row))

_get_errors = attrgetter(*COLUMNS[COLUMNS.index("is_equal") : COLUMNS.index("worst_candidate") + 1])
_NOT_MEASURED = (None,) * (COLUMNS.index("reference_max") - COLUMNS.index("is_equal"))
_NO_STATISTICS = (None,) * (COLUMNS.index("reference_checksum") - COLUMNS.index("reference_max"))
_BESIDE_ERRORS = 4
"""So many of the columns of a leaf stand before the errors."""


def build_rows(comparison: Comparison) -> list[Row]:
    """All of them, in the order of execution; the calls without a partner follow those of their step and rank."""
    return list(iter_rows(comparison))


def iter_rows(comparison: Comparison) -> Iterator[Row]:
    """The same, one at a time: a run has a hundred thousand values."""
    for rank in comparison.ranks:
        for call in rank.calls:
            common = _call_columns(rank, call)
            for value in call.values:
                yield _value_row(call, value, common)
        for found in rank.only_reference:
            yield _unpaired_row(rank, found, "reference")
        for found in rank.only_candidate:
            yield _unpaired_row(rank, found, "candidate")


def count_rows(comparison: Comparison) -> int:
    """How many there are, without making them."""
    return sum(
        sum(len(call.values) for call in rank.calls) + len(rank.only_reference) + len(rank.only_candidate)
        for rank in comparison.ranks
    )


@dataclass(slots=True)
class _CallColumns:
    """What is the same for all values of a call."""

    step: int | None
    rank: str
    because: str | None
    locations: tuple[str | None, str | None]


def _call_columns(rank: RankResult, call: CallResult) -> _CallColumns:
    locations = call.reference_location, call.candidate_location
    described = [describe_frame(location) if location else None for location in locations]
    return _CallColumns(rank.step, _folder(rank.reference_name), call.because or None, (described[0], described[1]))


def _value_row(call: CallResult, value: ValuePair, common: _CallColumns) -> Row:
    """By position, in the order of the fields: by name each would take several times as long."""
    holder, other = find_holder(call.reference, value.reference), find_holder(call.candidate, value.candidate)
    measurement = value.measurement
    reference, candidate = _leaf_columns(value.reference), _leaf_columns(value.candidate)
    columns: tuple[Any, ...] = (
        common.step,
        common.rank,
        _slot_name(holder, value.reference),
        _slot_name(other, value.candidate),
        value.status,
        call.role,
        value.error,
        value.tolerance,
        value.reason or (measurement.problem if measurement else None) or None,
        common.because,
        measurement.basis if measurement else None,
        call.rule,
        holder.module_path,
        holder.direction or None,
        holder.caller or other.caller,
        *chain.from_iterable(zip(reference[:_BESIDE_ERRORS], candidate[:_BESIDE_ERRORS], strict=True)),
        *(_NOT_MEASURED if measurement is None else _get_errors(measurement)),
        *(_NO_STATISTICS if not value.is_tensor else _statistics_columns(value)),
        *chain.from_iterable(zip(reference[_BESIDE_ERRORS:], candidate[_BESIDE_ERRORS:], strict=True)),
        *common.locations,
    )
    return Row(*columns)


def _unpaired_row(rank: RankResult, found: Unpaired, side: str) -> Row:
    call = found.call
    return Row(
        step=rank.step,
        rank=_folder(rank.reference_name),
        reference_name=call.name if side == "reference" else None,
        candidate_name=call.name if side == "candidate" else None,
        status="not comparable",
        role="not compared",
        reason=describe_unpaired(found, side),
        module_path=call.module_path,
        direction=call.direction or None,
        caller=call.caller,
    )


def describe_unpaired(found: Unpaired, side: str) -> str:
    """`only in the candidate; nearest Functional.gelu.2.forward: other shape`"""
    text = f"only in the {side}"
    if found.nearest is not None:
        text += f"; nearest {found.nearest.name}" + (f": {found.why}" if found.why else "")
    elif found.why:
        text += f"; {found.why}"
    return text


def _folder(rank_name: str) -> str:
    return rank_name.rpartition("/")[2]


def _slot_name(call: Call, slot: Slot | None) -> str | None:
    """`Functional.linear.3.forward.input.0`; the slot of a plain saved value has no name of its own."""
    if slot is None:
        return None
    return f"{call.name}.{slot.slot}" if slot.slot else call.name


def _leaf_columns(slot: Slot | None) -> tuple[Any, ...]:
    """dtype, shape, requires_grad and value; checksum and data_name, which stand behind the errors."""
    if isinstance(slot, TensorSlot):
        return slot.dtype, slot.shape, slot.requires_grad, None, slot.checksum, slot.data_name
    return None, None, None, None if slot is None else describe_value(slot), None, None


def describe_value(slot: PlainSlot) -> str:
    """An argument that is no tensor, in Python's spelling; an object of which only the type is known by that."""
    if slot.value is None:
        return "None" if slot.type in ("NoneType", "None") else slot.type
    text = safe_repr(slot.value)
    return text if len(text) <= _MAX_VALUE_TEXT else f"{text[: _MAX_VALUE_TEXT - 1]}…"


def safe_repr(value: Any) -> str:
    """A value from a dump, in Python's spelling, whatever it is."""
    try:
        return repr(value)
    except (RecursionError, ValueError):  # nested beyond all reason; an integer of thousands of digits
        return "…"


def _statistics_columns(value: ValuePair) -> tuple[Any, ...]:
    """Those of both sides; then their differences; then the relative ones."""
    references, candidates = _statistics(value, value.reference), _statistics(value, value.candidate)
    differences = list(map(_subtract, candidates, references))
    sides = chain.from_iterable(zip(references, candidates, strict=True))
    return (*sides, *differences, *map(_divide, differences, references))


def _statistics(value: ValuePair, slot: Slot | None) -> tuple[Number, ...]:
    """As the dump has them; a norm that it lacks may have been measured on the tensor."""
    found = (slot.max, slot.min, slot.mean, slot.norm) if isinstance(slot, TensorSlot) else (None,) * 4
    if found[3] is None and value.measurement:
        norm = value.measurement.norm_reference if slot is value.reference else value.measurement.norm_candidate
        return (*found[:3], norm)
    return found


def _subtract(candidate: Number, reference: Number) -> Number:
    if candidate is None or reference is None:
        return None
    if candidate == reference:  # two infinities of one sign have no difference either
        return 0
    try:
        return candidate - reference
    except OverflowError:  # a hostile integer beside a float
        return None


def _divide(difference: Number, reference: Number) -> float | None:
    if difference is None or reference is None:
        return None
    if difference == 0:
        return 0.0
    try:
        return abs(difference) / abs(reference) if reference else float("inf")
    except OverflowError:
        return None
