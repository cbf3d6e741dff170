"""Results that mean nothing: memory that a kernel hands out as it found it. Two runs never agree on it.

MindSpore's BatchNorm and LSTM return, behind their results, what they keep for their backward or do not fill at all.
"""

from __future__ import annotations

from tensorprobe.model.name import is_index

_FIRST_UNDEFINED = {"BatchNorm": 1, "LSTM": 3}
"""By the class of a Primitive: the first of its results that means nothing."""


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
