"""The meaning, in torch, of MindSpore's functions, methods and primitives. MindSpore is not needed for it."""

from __future__ import annotations

from tensorprobe.replay.meaning.mindspore import (
    arrange,
    choice,
    creation,
    elementwise,
    image,
    index,
    layer,
    layout,
    linear_algebra,
    loss,
    named,
    pooling,
    product,
    recurrent,
    reduction,
    scatter,
    special,
)
from tensorprobe.replay.meaning.mindspore.table import OWN_RESULTS, PRIMITIVE, TABLE, Entry, common_keywords, find_entry

__all__ = ["OWN_RESULTS", "PRIMITIVE", "TABLE", "Entry", "common_keywords", "find_entry"]

_FILLED_BY = (
    *(arrange, choice, creation, elementwise, image, index, layer, layout, linear_algebra, loss, named, pooling),
    *(product, recurrent, reduction, scatter, special),
)
