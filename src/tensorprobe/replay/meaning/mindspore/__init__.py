"""The meaning, in torch, of MindSpore's functions, methods and primitives. MindSpore is not needed for it."""

from __future__ import annotations

from tensorprobe.replay.meaning.mindspore import (
    creation,
    elementwise,
    image,
    index,
    layer,
    layout,
    loss,
    named,
    product,
    recurrent,
    reduction,
)
from tensorprobe.replay.meaning.mindspore.table import OWN_RESULTS, TABLE, Entry, common_keywords, find_entry

__all__ = ["OWN_RESULTS", "TABLE", "Entry", "common_keywords", "find_entry"]

_FILLED_BY = (creation, elementwise, image, index, layer, layout, loss, named, product, recurrent, reduction)
