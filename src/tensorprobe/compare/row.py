"""A comparison as a table: one row for each pair of values, one for each call without a partner.

CSV, XLSX, JSON and pandas share these rows and cannot disagree. A field here is the column there, under the same name.
Text is as the dump has it: who writes it escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from typing import Any, cast

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

Block = dict[str, Sequence[Any]]
"""Some rows, column by column: what is made and laid out many at a time takes a fraction of the time."""

_BLOCK_ROWS = 4096
_SIDES = ("reference", "candidate")
_STATISTICS = ("max", "min", "mean", "norm")
_LEAF = ("dtype", "shape", "requires_grad", "checksum", "data_name", *_STATISTICS)
_ERRORS = COLUMNS[COLUMNS.index("is_equal") : COLUMNS.index("worst_candidate") + 1]
_MEASURED = ("basis", "problem", "norm_reference", "norm_candidate", *_ERRORS)
_get_leaf, _get_measured = attrgetter(*_LEAF), attrgetter(*_MEASURED)
_NO_LEAF, _NOT_MEASURED = (None,) * len(_LEAF), (None,) * len(_MEASURED)


def build_rows(comparison: Comparison) -> list[Row]:
    """All of them, in the order of execution; the calls without a partner follow those of their step and rank."""
    return list(iter_rows(comparison))


def iter_rows(comparison: Comparison) -> Iterator[Row]:
    """The same, a block at a time: a run has a hundred thousand values."""
    for block in iter_blocks(comparison):
        yield from map(Row, *block.values())


def iter_blocks(comparison: Comparison) -> Iterator[Block]:
    """The rows as columns, some thousands at a time. All blocks have all columns, in their order."""
    for rank in comparison.ranks:
        values = ((call, value) for call in rank.calls for value in call.values)
        while some := list(islice(values, _BLOCK_ROWS)):
            yield _value_block(rank, [call for call, _ in some], [value for _, value in some])
        lone = [_unpaired_row(rank, found, "reference") for found in rank.only_reference]
        lone += [_unpaired_row(rank, found, "candidate") for found in rank.only_candidate]
        if lone:
            yield make_block(lone)


def make_block(rows: Sequence[Row]) -> Block:
    """Rows that were made one by one."""
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}


def count_block(block: Block) -> int:
    """How many rows it has."""
    return len(block["status"])


def count_rows(comparison: Comparison) -> int:
    """How many there are, without making them."""
    return sum(
        rank.tally.values.total() + len(rank.only_reference) + len(rank.only_candidate) for rank in comparison.ranks
    )


def _value_block(rank: RankResult, calls: list[CallResult], values: list[ValuePair]) -> Block:
    """Pairs of values, each with its pair of calls."""
    holders = {
        "reference": [find_holder(call.reference, value.reference) for call, value in zip(calls, values, strict=True)],
        "candidate": [find_holder(call.candidate, value.candidate) for call, value in zip(calls, values, strict=True)],
    }
    slots = {"reference": [value.reference for value in values], "candidate": [value.candidate for value in values]}
    measurements = [value.measurement for value in values]
    measured = _list_columns(_MEASURED, (_NOT_MEASURED if one is None else _get_measured(one) for one in measurements))
    columns: Block = {
        "step": [rank.step] * len(values),
        "rank": [_folder(rank.reference_name)] * len(values),
        "status": [value.status for value in values],
        "role": [call.role for call in calls],
        "error": [value.error for value in values],
        "tolerance": [value.tolerance for value in values],
        "reason": [value.reason or problem or None for value, problem in zip(values, measured["problem"], strict=True)],
        "because": [call.because or None for call in calls],
        "rule": [call.rule for call in calls],
        "module_path": [holder.module_path for holder in holders["reference"]],
        "direction": [holder.direction or None for holder in holders["reference"]],
        "caller": [one.caller or other.caller for one, other in zip(*holders.values(), strict=True)],
        "reference_location": [_describe_location(call.reference_location) for call in calls],
        "candidate_location": [_describe_location(call.candidate_location) for call in calls],
        **measured,
    }
    for side in _SIDES:
        columns[f"{side}_name"] = list(map(_slot_name, holders[side], slots[side]))
        columns |= _leaf_columns(side, slots[side], measured[f"norm_{side}"])
    for name in _STATISTICS:
        references, candidates = columns[f"reference_{name}"], columns[f"candidate_{name}"]
        columns[f"{name}_difference"] = differences = list(map(_subtract, candidates, references))
        columns[f"{name}_relative_difference"] = list(map(_divide, differences, references))
    return {name: columns[name] for name in COLUMNS}


def _list_columns(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Block:
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _leaf_columns(side: str, slots: Sequence[Slot | None], norms: Sequence[Any]) -> Block:
    """What the dump says of one side. A norm that it lacks may have been measured on the tensor."""
    are_tensors = [isinstance(slot, TensorSlot) for slot in slots]
    both = list(zip(slots, are_tensors, strict=True))
    columns = _list_columns(_LEAF, (_get_leaf(slot) if is_tensor else _NO_LEAF for slot, is_tensor in both))
    if None in columns["norm"]:
        columns["norm"] = [found if norm is None else norm for norm, found in zip(columns["norm"], norms, strict=True)]
    columns["value"] = [
        None if is_tensor or slot is None else describe_value(cast(PlainSlot, slot)) for slot, is_tensor in both
    ]
    return {f"{side}_{name}": column for name, column in columns.items()}


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


def _describe_location(location: str | None) -> str | None:
    return describe_frame(location) if location else None


def _folder(rank_name: str) -> str:
    return rank_name.rpartition("/")[2]


def _slot_name(call: Call, slot: Slot | None) -> str | None:
    """`Functional.linear.3.forward.input.0`; the slot of a plain saved value has no name of its own."""
    if slot is None:
        return None
    return f"{call.name}.{slot.slot}" if slot.slot else call.name


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
