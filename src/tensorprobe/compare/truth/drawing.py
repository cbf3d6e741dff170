"""Numbers in the place of those that were not recorded: with their extremes, their mean and their size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.store.slot import TensorSlot
from tensorprobe.store.tensor_layout import NotDense, numpy_dtype

Array = np.ndarray[Any, Any]


def can_draw(slot: TensorSlot) -> bool:
    """Do its statistics say enough? With NaN nothing is to be proved."""
    if slot.shape is None or not slot.element_count or slot.nan_count or slot.sketch is None:
        return False
    if slot.inf_count and not (isinstance(slot.max, float) and math.isfinite(slot.max)):
        return False
    try:
        numpy_dtype(short_dtype(slot.dtype))
    except (NotDense, UsageError):
        return False
    return None not in (slot.min, slot.max, slot.mean, slot.norm)


def draw(slot: TensorSlot) -> Array:
    """An array of the shape and dtype of this tensor. Drawn again for the same statistics it is the same."""
    count, dtype = slot.element_count or 0, numpy_dtype(short_dtype(slot.dtype))
    random = np.random.default_rng(np.array(slot.sketch, np.float64).view(np.uint64))
    if slot.min == slot.max:
        content: Array = np.full(count, slot.max)
    elif dtype.kind in "biu":
        content = _draw_whole(slot, count, random)
    else:
        content = _draw_real(slot, count, random)
    return content.reshape(slot.shape or ()).astype(dtype)


def _draw_whole(slot: TensorSlot, count: int, random: np.random.Generator) -> Array:
    """Between the extremes, of which each occurs. A number below zero marks what is left out: few others are valid, and
    a loss divides by how many are left."""
    smallest, largest = int(slot.min or 0), int(slot.max or 0)
    content = random.integers(max(smallest, 0) if largest >= 0 else smallest, largest, count, endpoint=True)
    places = random.permutation(count)
    content[places[-1]] = largest
    content[places[: _count_marks(slot, count) if smallest < 0 <= largest else 1]] = smallest
    return content


def _count_marks(slot: TensorSlot, count: int) -> int:
    """How many elements are the smallest number, all others being zero or more: so that these can have the sum and the
    squares that are left."""
    mark, largest = float(slot.min or 0.0), float(slot.max or 0.0)
    marks = np.arange(1, count)
    mean = (float(slot.mean or 0.0) * count - mark * marks) / (count - marks)
    square = (float(slot.norm or 0.0) ** 2 - mark**2 * marks) / (count - marks)
    slack = 1e-6 * max(largest, 1.0) ** 2
    is_possible = (mean >= 0) & (mean <= largest) & (mean**2 <= square + slack) & (square <= largest * mean + slack)
    found = marks[is_possible]
    return int(found[len(found) // 2]) if len(found) else 1


def _draw_real(slot: TensorSlot, count: int, random: np.random.Generator) -> Array:
    smallest, largest, mean, norm = (float(number or 0.0) for number in (slot.min, slot.max, slot.mean, slot.norm))
    if slot.inf_count:
        return _draw_mask(largest, slot.inf_count / count, slot.shape or (), random)
    spread = max(norm**2 / count - mean**2, 0.0)
    content: Array = np.clip(mean + math.sqrt(spread) * random.standard_normal(count), smallest, largest)
    return content


def _draw_mask(other: float, share: float, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Minus infinity, and one other number, which each row has."""
    content: Array = np.where(random.random(shape) < share, -math.inf, other)
    content[..., 0] = other
    return content
