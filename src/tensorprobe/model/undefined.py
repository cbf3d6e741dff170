"""Values that mean nothing: memory that nobody has written to. Two runs never agree on it.

A tensor that is undefined, or computed from undefined memory, has this note in its record. MindSpore's BatchNorm and
LSTM return, behind their results, what they keep for their backward or do not fill at all.
"""

from __future__ import annotations

from tensorprobe.model.name import is_index

UNDEFINED_MEMORY = "undefined memory"

_FIRST_UNDEFINED = {"BatchNorm": 1, "LSTM": 3}
"""By the class of a Primitive: the first of its results that means nothing."""


def is_undefined(note: str | None) -> bool:
    """Does the note of a tensor, or of a call about its results, say that they mean nothing?"""
    return note is not None and UNDEFINED_MEMORY in note


def add_undefined(note: str | None) -> str:
    """The note of a tensor that means nothing, with what it said before."""
    if note is None:
        return UNDEFINED_MEMORY
    return note if UNDEFINED_MEMORY in note else f"{note}; {UNDEFINED_MEMORY}"


def is_undefined_result(prefix: str, op: str, direction: str, slot: str) -> bool:
    """Is this result of an API call one that means nothing?

    >>> is_undefined_result("Primitive", "bn_train.BatchNorm", "forward", "output.1")
    True
    """
    if prefix != "Primitive" or direction == "backward":
        return False
    first = _FIRST_UNDEFINED.get(op.rpartition(".")[2])
    part, _, number = slot.partition(".")
    return first is not None and part == "output" and is_index(number) and int(number) >= first
