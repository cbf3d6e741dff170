"""A slice of a tensor as a picture of at most 64 × 64 cells, both sides and their difference.

Where the slice is larger, a cell stands for a block and holds the number of the largest magnitude in it, so that a
single wrong element is never averaged away; NaN counts as the largest of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CELLS = 64
_WINDOW_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Window:
    """Which part of a tensor is drawn: two dimensions, the others at the index of the worst element."""

    index: tuple[int | slice, ...]
    shape: tuple[int, ...]

    def cut(self, array: Array) -> Array:
        """The part, always of two dimensions."""
        part = array[self.index]
        found: Array = part.reshape(1, -1) if part.ndim == 1 else part
        return found.astype(np.complex128 if array.dtype.kind == "c" else np.float64)

    @property
    def start(self) -> list[int]:
        """The row and the column of the first element that is drawn."""
        starts = [place.start for place in self.index if isinstance(place, slice)]
        return [0] * (2 - len(starts)) + starts

    @property
    def title(self) -> str:
        """`[0, :, :] of 4 × 8 × 16`"""
        places = ", ".join(_describe_place(one, size) for one, size in zip(self.index, self.shape, strict=True))
        return f"[{places}] of {' × '.join(map(str, self.shape))}"


def draw_heat(arrays: list[Array], worst_index: tuple[int, ...] | None) -> dict[str, Any] | None:
    """Of one array, or of a reference and a candidate of the same shape. None for a single number, or for nothing."""
    shape = arrays[0].shape
    if arrays[0].size < 2:
        return None
    window = _find_window(shape, worst_index or (0,) * len(shape))
    parts = [window.cut(array) for array in arrays]
    differences = [_subtract(*parts)] if len(parts) == 2 else []
    block = tuple(math.ceil(size / CELLS) for size in parts[0].shape)
    title = window.title
    if block != (1, 1):
        title += f"; each cell is the largest of {block[0]} × {block[1]}"
    drawn = [_reduce(part, block) for part in (*parts, *differences)]
    return {
        "title": title,
        "index": [place for place in window.index if isinstance(place, int)],
        "start": window.start,
        "block": list(block),
        "reference": drawn[0],
        "candidate": drawn[1] if len(drawn) > 1 else [],
        "difference": drawn[2] if len(drawn) > 2 else [],
    }


def _find_window(shape: tuple[int, ...], worst: tuple[int, ...]) -> Window:
    """The last two dimensions that have more than one element; a part around the worst of what is too large."""
    drawn = [axis for axis, size in enumerate(shape) if size > 1][-2:]
    across = math.prod(shape[axis] for axis in drawn)
    index: list[int | slice] = list(worst)
    for axis in drawn:
        size = shape[axis]
        length = min(size, max(math.isqrt(_WINDOW_ELEMENTS), _WINDOW_ELEMENTS * size // across))
        start = min(max(0, worst[axis] - length // 2), size - length)
        index[axis] = slice(start, start + length)
    return Window(tuple(index), shape)


def _subtract(reference: Array, candidate: Array) -> Array:
    """What both sides have in common is no difference, also where it is NaN or Inf."""
    found: Array = candidate - reference
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    found[same] = 0
    return np.abs(found) if found.dtype.kind == "c" else found


def _reduce(part: Array, block: tuple[int, ...]) -> list[list[float]]:
    values: Array = np.abs(part) if part.dtype.kind == "c" else part
    rows = range(0, values.shape[0], block[0])
    columns = range(0, values.shape[1], block[1])
    if block == (1, 1):
        return [[_short(one) for one in row] for row in values.tolist()]
    return [[_largest(values[row : row + block[0], column : column + block[1]]) for column in columns] for row in rows]


def _largest(cell: Array) -> float:
    flat = cell.reshape(-1)
    return _short(float(flat[np.argmax(np.abs(flat))]))  # argmax takes the first NaN before any number


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def _describe_place(place: int | slice, size: int) -> str:
    if isinstance(place, int):
        return str(place)
    return ":" if place.stop - place.start == size else f"{place.start}:{place.stop}"
