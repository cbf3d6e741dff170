"""Statistics and hashes in one read of a tensor's memory, by compiled code (`_native.c`), where that was built.

Without it, or with TENSORPROBE_NATIVE=0, numpy and torch compute the same, slower. run.json says which it was.
"""

from __future__ import annotations

import math
from typing import Any

from tensorprobe.compiled import load_compiled
from tensorprobe.model.record import Stats

FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)
_TINY = 1e-280  # squares of float64 below this have lost digits


_compiled: Any = load_compiled("tensorprobe.capture._native", interface=1)
if _compiled is not None:
    _compiled.prepare(Stats)
summarize: Any = _compiled.summarize if _compiled is not None else None
"""`summarize_memory` itself, for other compiled code."""


def is_compiled() -> bool:
    return _compiled is not None


def reduce_memory(address: int, count: int, kind: int, threads: int) -> list[Any] | None:
    """Max, min, sum, norm, NaN count, Inf count and the sketch of `count` numbers that lie one after another; NaN is
    left out of the first four, what is not finite of the sketch. None where there is no compiled code, or squares
    leave the range of float64."""
    if _compiled is None or not address:
        return None
    largest, smallest, total, squares, nans, infs, *sketch = _compiled.reduce(address, count, kind, threads)
    if kind == FLOAT64 and not infs and (squares == math.inf or (squares < _TINY and (largest or smallest))):
        return None
    return [largest, smallest, total, math.sqrt(squares), nans, infs, *sketch]


def summarize_memory(address: int, count: int, kind: int, threads: int) -> Stats | None:
    """The statistics of numbers that are all finite, and of a size that nothing is to be said of; None for others."""
    if _compiled is None or not address:
        return None
    found: Stats | None = _compiled.summarize(address, count, kind, threads)
    return found


def hash_memory(address: int, count: int, width: int, start: int) -> int | None:
    """The part of the positional hash (torch/digest.py) that `count` words of `width` bits have, the first of which is
    number `start`. None where there is no compiled code."""
    if _compiled is None or not address:
        return None
    found: int = _compiled.hash_words(address, count, width, start)
    return found
