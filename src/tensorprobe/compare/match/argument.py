"""Arguments that are no tensors: compared exactly, because a wrong one is evidence by itself.

Object addresses, devices, generators and process groups are not compared: they differ between any two runs. What two
frameworks only spell otherwise is the same: `axis` and `dim`, a `keep_prob` of 0.9 and a `p` of 0.1, their dtypes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tensorprobe.compare.result import Status, ValuePair
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import is_index
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a, plain_op
from tensorprobe.word.signature import MISSING
from tensorprobe.word.vocabulary import (
    ASIDE,
    common_argument,
    common_name_of,
    common_value,
    default_value,
    is_dimension,
    is_made_with,
    is_silent,
)

_INCOMPARABLE_TYPES = ("device", "Generator", "ProcessGroup", "Stream", "Event", "DeviceMesh")
Calls = tuple[Call, Call]
"""A call of the reference and its partner."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")

_DIMENSION_SLOTS = {
    **dict.fromkeys(("mode", "scatter_reduce", "size", "unflatten", "unfold"), "input.1"),
    "take_along_dim": "input.2",
}
"""Where operations without a signature say along which dimension; `unfold` has that of the function of this name."""
_SIZE_KEYWORDS = frozenset(("output_size", "scale_factor", "shape", "size", "sizes"))


def compare_said(reference: PlainSlot, candidate: PlainSlot, calls: Calls) -> ValuePair:
    """One plain argument of a call against that of its partner, both in the words of PyTorch. The rank of the call's
    tensors counts: dim=-1 may be dim=2."""
    said = [_say(slot, call) for slot, call in zip((reference, candidate), calls, strict=True)]
    one, other = (_element(said[0], said[1].slot), _element(said[1], said[0].slot))
    op = plain_op(word_of(calls[0]))  # `aten.sum.dim_IntList` has no signature, `sum` has
    is_known = is_dimension(one.slot) or is_dimension(common_name_of(op, reference.slot))
    is_along = is_known or _DIMENSION_SLOTS.get(op) == reference.slot
    status, reason = _compare(one, other, _rank_of(calls[0]) if is_along else None)
    return ValuePair(reference, candidate, status, None, reason=reason)


def _rank_of(call: Call) -> int | None:
    return next((len(slot.shape) for slot in call.tensors if slot.shape is not None), None)


def is_size(value: ValuePair, calls: Calls) -> bool:
    """Does this argument say how large the result is, and nothing else? The result says that too.

    `expand(4, -1)` is `expand(4, 12)`, and twice as large may be 16 x 16.
    """
    call = calls[1] if value.reference is None else calls[0]
    name = common_argument(call, value.slot)
    keyword = name.removeprefix("kwargs.").removeprefix("settings.").partition(".")[0]
    return keyword in _SIZE_KEYWORDS and is_a(word_of(call), "sized")


def compare_lone(reference: Slot | None, candidate: Slot | None, calls: Calls) -> ValuePair:
    """A slot that only one side has: a keyword that the other left to its default, a gradient that is not there.

    A mismatch, unless it is known to say nothing; whether it matters is left to who knows the call.
    """
    slot = candidate if reference is None else reference
    assert slot is not None
    call, other = calls if candidate is None else calls[::-1]
    name = common_argument(call, slot.slot, isinstance(slot, PlainSlot) and isinstance(slot.value, list))
    default = _default_of(name, other) if isinstance(slot, PlainSlot) and slot.is_input else MISSING
    settled = _settle_lone(slot, name, (call, other), default)
    if settled is not None:
        return ValuePair(reference, candidate, settled[0], None, reason=settled[1])
    reason = f"only in {'the candidate' if reference is None else 'the reference'}"
    if default is not MISSING:
        reason += f", where the other's default is {default!r}"
    return ValuePair(reference, candidate, "not comparable", None, reason=reason, is_mismatch=True)


def _default_of(name: str, call: Call) -> Any:
    """What a call takes for an argument that it is not given, or for one element of it."""
    keyword, _, place = name.removeprefix("kwargs.").partition(".")
    default = default_value(call, keyword)
    if is_index(place) and isinstance(default, tuple) and int(place) < len(default):
        return default[int(place)]
    return default


def _settle_lone(slot: Slot, name: str, calls: Calls, default: Any) -> tuple[Status, str] | None:
    """Why it does not matter that the partner of its call does not have this slot, where that is known."""
    if f".{ASIDE}." in name:
        return "not comparable", "not returned by the other framework"
    if not isinstance(slot, PlainSlot) or not slot.is_input:
        return None
    said = _say(slot, calls[0])
    is_nothing = said.value is None and slot.type == "NoneType" and default is MISSING  # as good as left out
    if is_nothing or is_silent(name, said.value):
        return "equal", "changes nothing"
    dimensions = _rank_of(calls[0]) if is_dimension(name) else None
    if _compare(said, PlainSlot(name, type(default).__name__, default), dimensions)[0] == "equal":
        return "equal", "the default"
    return ("not comparable", "not seen: the primitive was made with it") if is_made_with(calls[1], name) else None


def _say(slot: PlainSlot, call: Call) -> PlainSlot:
    """The same argument in the words of PyTorch."""
    value = common_value(call, slot.slot, slot.value)
    is_dtype = slot.type.rpartition(".")[2] == "dtype" and isinstance(value, str)
    name = common_argument(call, slot.slot, isinstance(value, list))
    return PlainSlot(name, slot.type, short_dtype(value) if is_dtype else value, slot.is_input)


def _element(slot: PlainSlot, other: str) -> PlainSlot:
    """Of a whole shape, the size that the other argument, `kwargs.shape.1`, is."""
    rest = other.removeprefix(f"{slot.slot}.")
    if rest == other or not is_index(rest) or not isinstance(slot.value, list) or int(rest) >= len(slot.value):
        return slot
    return PlainSlot(other, "int", slot.value[int(rest)], slot.is_input)


def find_changed(arguments: Sequence[ValuePair], or_left_out: bool = True) -> list[ValuePair]:
    """The plain arguments that differ; where none does, those that one side left to their defaults."""
    changed = [value for value in arguments if value.status == "different"]
    return changed or [value for value in arguments if or_left_out and value.is_mismatch]


def describe_arguments(values: Sequence[ValuePair]) -> str:
    """The first few of them, as they were given in both runs."""
    return ", ".join(map(_describe_argument, values[:4]))


def _describe_argument(value: ValuePair) -> str:
    name = value.slot.removeprefix("kwargs.").removeprefix("settings.")
    if value.reference is None:
        return f"{name}={show_argument(value.candidate)} where the reference gave none"
    if value.candidate is None:
        return f"no {name} where the reference had {show_argument(value.reference)}"
    return f"{name}={show_argument(value.candidate)} where the reference had {show_argument(value.reference)}"


def show_argument(slot: Slot | None) -> str:
    """As it would be written in a call."""
    if not isinstance(slot, PlainSlot):
        return "nothing" if slot is None else "a tensor"
    if slot.type in ("float", "int", "bool", "str", "NoneType") or slot.value is None:
        return repr(slot.value)
    return str(slot.value)


def _compare(reference: PlainSlot, candidate: PlainSlot, dimensions: int | None) -> tuple[Status, str]:
    if _is_incomparable(reference) or _is_incomparable(candidate):
        return "equal", ""
    if is_same_value(reference.value, candidate.value) or _is_same_dimension(reference, candidate, dimensions):
        return "equal", ""
    return "different", f"{show_argument(candidate)} where the reference had {show_argument(reference)}"


def _is_incomparable(slot: PlainSlot) -> bool:
    if slot.type.rpartition(".")[2] in _INCOMPARABLE_TYPES:
        return True
    is_object = slot.value is None and slot.type not in ("NoneType", "None")
    return is_object or (isinstance(slot.value, str) and _ADDRESS.search(slot.value) is not None)


def is_same_value(reference: Any, candidate: Any) -> bool:
    """Equal, where NaN equals NaN; 1, 1.0 and True are one value, as they are to the framework."""
    if isinstance(reference, float) and isinstance(candidate, float) and math.isnan(reference):
        return math.isnan(candidate)
    return bool(reference == candidate)


def _is_same_dimension(reference: PlainSlot, candidate: PlainSlot, dimensions: int | None) -> bool:
    """-1 and 2 are the same dimension of a tensor of rank 3."""
    first, second = reference.value, candidate.value
    if not dimensions or type(first) is not int or type(second) is not int:
        return False
    is_dimension = -dimensions <= first < dimensions and -dimensions <= second < dimensions
    return is_dimension and (first < 0) != (second < 0) and abs(first - second) == dimensions
