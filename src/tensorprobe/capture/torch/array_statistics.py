"""Statistics and sketch of a tensor on the host, by numpy, whose calls cost less than torch's.

Nothing here starts a thread: those of numpy's matrix products compete with those of torch. `einsum` has none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tensorprobe.store.sketch import BLOCK, Fold, project, row_signs

Array = np.ndarray[Any, Any]

_CHUNK = 256 * BLOCK
_SHORT = 512
"""So many numbers, or the rows of a chunk with their signs, are added in the tensor's own precision, and such sums in
float64: the error stays below 1e-6 of the norm."""
_KINDS: dict[torch.dtype, str] = {torch.float32: "<f4", torch.float64: "<f8"}


class Memory:
    """Elements that belong to a tensor, for numpy to look at. `numpy()` would fix the size of the user's storage."""

    __slots__ = ("__array_interface__",)

    def __init__(self, flat: torch.Tensor) -> None:
        self.__array_interface__ = {
            "data": (flat.data_ptr(), True),
            "shape": (flat.numel(),),
            "typestr": _KINDS[flat.dtype],
            "version": 3,
        }


def is_in_memory(flat: torch.Tensor) -> bool:
    """May numpy look at it? Zeros that autograd makes have no memory."""
    return flat.dtype in _KINDS and bool(flat.data_ptr())


def reduce_array(flat: torch.Tensor) -> list[Any] | None:
    """Max, min, sum, norm, NaN count, Inf count and sketch of a contiguous tensor. None where not everything is finite,
    or the squares leave the range of the dtype: then the sums may, too."""
    array = np.asarray(Memory(flat))
    largest, smallest = -math.inf, math.inf
    total = squares = 0.0
    fold = Fold()
    for start in range(0, array.size, _CHUNK):
        part = array[start : start + _CHUNK]
        whole = part.size - part.size % _SHORT
        short, rest = part[:whole].reshape(-1, _SHORT), part[whole:]
        squares += _add_up(np.einsum("rc,rc->r", short, short)) + float(np.einsum("c,c->", rest, rest))
        if not squares < math.inf:
            return None
        total += _add_up(np.einsum("rc->r", short)) + float(np.einsum("c->", rest))
        largest = max(largest, float(np.maximum.reduce(part)))
        smallest = min(smallest, float(np.minimum.reduce(part)))
        fold.add(part)
    return [largest, smallest, total, math.sqrt(squares), 0, 0, *fold.sums()]


def _add_up(sums: Array) -> float:
    return float(np.add.reduce(sums, dtype=np.float64))


def sketch_small(numbers: Array) -> list[float]:
    """Of a few rows of float64 numbers, all of them finite."""
    columns = numbers[:BLOCK].copy()
    for row in range(1, -(-numbers.size // BLOCK)):
        line = numbers[row * BLOCK : (row + 1) * BLOCK]
        place = columns[: line.size]
        (np.add if row_signs(row) > 0 else np.subtract)(place, line, out=place)
    return project(columns)


def sketch_flat(flat: torch.Tensor) -> list[float]:
    """The sketch of a contiguous tensor that is finite."""
    array = np.asarray(Memory(flat))
    fold = Fold()
    for start in range(0, array.size, _CHUNK):
        fold.add(array[start : start + _CHUNK])
    return fold.sums()
