"""What is known of a tensor whose numbers are not: how many there are, the largest, the smallest, mean, norm, sketch.

Of parts that lie one behind the other all but the sketch follow: norms add up in squares, means weigh by their counts,
the largest is the largest of all. Of parts that are added up, the mean and the sketch do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorprobe.replay.true_step import UNITS
from tensorprobe.run.leaf import Leaf

_FIELDS = ("Max", "Min", "Mean", "Norm")
_SKETCH_ROOM = 8.0
"""A sketch is a sum of all elements with signs: it differs by a few times what the norm of a difference is."""


@dataclass(frozen=True)
class Summary:
    """The statistics of one tensor, of finite numbers."""

    shape: tuple[int, ...]
    largest: float
    smallest: float
    mean: float
    norm: float
    sketch: tuple[float, ...] | None = None
    """None where there is none, or where it does not follow."""
    unit: float = 0.0
    """What one rounding of its dtype does at most."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def mark(self) -> tuple[Any, ...]:
        """Equal for the same content, in whatever shape."""
        return (self.count, self.largest, self.smallest, self.mean, self.norm)

    @property
    def is_plain(self) -> bool:
        """One number, over and over: it is everywhere."""
        return self.count > 1 and self.largest == self.smallest

    def is_like(self, other: Summary, tolerance: float) -> bool:
        """May both be the same numbers, up to a relative error?"""
        if self.count != other.count:
            return False
        size = max(abs(self.largest), abs(self.smallest), abs(other.largest), abs(other.smallest))
        norm = max(self.norm, other.norm)
        is_like = (
            abs(self.norm - other.norm) <= tolerance * norm
            and abs(self.largest - other.largest) <= tolerance * size
            and abs(self.smallest - other.smallest) <= tolerance * size
            and abs(self.mean - other.mean) <= tolerance * norm / math.sqrt(self.count)
        )
        return is_like and (self.shape != other.shape or self._has_sketch_of(other, tolerance))

    def is_sum(self, parts: Sequence[Summary], tolerance: float, divisor: float = 1.0) -> bool:
        """May it be what parts of its shape add up to?"""
        if any(part.shape != self.shape for part in parts):
            return False
        mean = sum(part.mean for part in parts) / divisor
        norm = sum(part.norm for part in parts) / divisor
        if abs(mean - self.mean) > tolerance * norm / math.sqrt(self.count) or self.norm > norm * (1 + tolerance):
            return False
        sketches = [part.sketch for part in parts if part.sketch is not None]
        if self.sketch is None or len(sketches) < len(parts):
            return False
        added = tuple(sum(numbers) / divisor for numbers in zip(*sketches, strict=True))
        room = _SKETCH_ROOM * tolerance * norm
        return all(abs(one - other) <= room for one, other in zip(added, self.sketch, strict=True))

    def find_factor(self, other: Summary, tolerance: float) -> float | None:
        """By what number it is larger than another."""
        if self.count != other.count or not other.norm:
            return None
        factor = self.norm / other.norm
        sketch = None if other.sketch is None else tuple(factor * number for number in other.sketch)
        largest, smallest, mean = (factor * number for number in (other.largest, other.smallest, other.mean))
        scaled = Summary(other.shape, largest, smallest, mean, self.norm, sketch)
        return factor if self.is_like(scaled, tolerance) else None

    def _has_sketch_of(self, other: Summary, tolerance: float) -> bool:
        if self.sketch is None or other.sketch is None:
            return True
        room = _SKETCH_ROOM * tolerance * max(self.norm, other.norm)
        return all(abs(one - two) <= room for one, two in zip(self.sketch, other.sketch, strict=True))


def join(parts: Sequence[Summary]) -> Summary:
    """What lies one behind the other; its shape is not known."""
    count = sum(part.count for part in parts)
    return Summary(
        (count,),
        max(part.largest for part in parts),
        min(part.smallest for part in parts),
        sum(part.mean * part.count for part in parts) / count,
        math.sqrt(sum(part.norm**2 for part in parts)),
        unit=max(part.unit for part in parts),
    )


def read_summary(leaf: Leaf) -> Summary | None:
    """None where the record has no numbers, or some that are not finite."""
    numbers = [leaf.fields.get(name) for name in _FIELDS]
    known = [float(number) for number in numbers if isinstance(number, (int, float)) and math.isfinite(number)]
    if leaf.is_undefined or len(known) < len(numbers) or not math.prod(leaf.stored_shape):
        return None
    listed = leaf.fields.get("Sketch")
    sketch = (
        tuple(listed) if isinstance(listed, list) and all(isinstance(one, (int, float)) for one in listed) else None
    )
    largest, smallest, mean, norm = known
    return Summary(leaf.stored_shape, largest, smallest, mean, norm, sketch, UNITS.get(leaf.dtype, 0.0))
