"""The error of a value that still counts as agreeing, in two measures that are never mixed.

`norm` is the distance of two tensors relative to their Euclidean norm: what most of the elements do. `peak` is the
largest error relative to the largest magnitude: what a single element does. A fault in one row of a large tensor shows
in the peak and not in the norm; after an optimizer's step a few elements may be far off by rounding alone, and only the
norm still tells whether the next call is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

GAIN = 16.0
"""How much more relative error than its inputs have a single call may pass on."""


class Noise(NamedTuple):
    norm: float
    peak: float

    def passed_on(self, rounding: float, scale: float = 1.0, gain: float = GAIN) -> Noise:
        """What a call whose inputs have this error may return."""
        return Noise(scale * (rounding + gain * self.norm), scale * (rounding + gain * self.peak))

    def relative_to(self, scale: float) -> Noise:
        return Noise(self.norm / scale, self.peak / scale)

    def is_within(self, tolerance: Noise) -> bool:
        return self.norm <= tolerance.norm and self.peak <= tolerance.peak

    def worst_against(self, tolerance: Noise) -> tuple[float, float]:
        """The measure that comes closest to its tolerance, or exceeds it most: error and tolerance."""
        if self is SILENCE:
            return self.norm, tolerance.norm
        return max(zip(self, tolerance, strict=True), key=_excess)


SILENCE = Noise(0.0, 0.0)


def loudest(noises: Iterable[Noise]) -> Noise:
    """The largest of each measure."""
    norm = peak = 0.0
    for noise in noises:
        if noise is SILENCE:  # of most values
            continue
        if noise.norm > norm:
            norm = noise.norm
        if noise.peak > peak:
            peak = noise.peak
    return Noise(norm, peak) if norm or peak else SILENCE


def _excess(both: tuple[float, float]) -> tuple[float, float]:
    error, tolerance = both
    if error == 0.0 or error != error:
        return (0.0, error)
    return (error / tolerance if tolerance > 0 else float("inf"), error)
