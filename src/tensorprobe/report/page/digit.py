"""Numbers with no more digits than are shown: there are millions of them in a page, so they are cut many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

_LARGEST_POWER = 22
"""The powers of ten up to here are exact in float64: what is multiplied or divided by one is rounded once."""
_SMALLEST, _LARGEST = 1e-12, 1e12
_POWERS = 10.0 ** np.arange(_LARGEST_POWER + 1)


def shorten_numbers(column: list[Any], digits: int) -> list[Any]:
    """A column with its floats cut to so many significant digits; all else in it stays as it is."""
    places = [place for place, value in enumerate(column) if type(value) is float]
    if not places:
        return column
    found = list(column)
    numbers = np.array([column[place] for place in places] if len(places) < len(column) else column)
    for place, number in zip(places, _cut(numbers, digits), strict=True):
        found[place] = number
    return found


def _cut(numbers: np.ndarray[Any, Any], digits: int) -> list[float]:
    """As `float(f"{number:.{digits}g}")` has them, but for numbers that lie in the middle of two."""
    size = np.abs(numbers)
    is_usual = (size > _SMALLEST) & (size < _LARGEST)
    found = numbers.copy()
    found[is_usual] = _cut_usual(numbers[is_usual], digits)
    for place in np.flatnonzero(~is_usual & (size > 0) & np.isfinite(size)).tolist():
        found[place] = float(f"{numbers[place]:.{digits}g}")
    listed: list[float] = found.tolist()
    return listed


def _cut_usual(numbers: np.ndarray[Any, Any], digits: int) -> np.ndarray[Any, Any]:
    shifts = digits - 1 - np.floor(np.log10(np.abs(numbers))).astype(np.int64)
    powers = _POWERS[np.abs(shifts)]
    is_left = shifts >= 0
    whole = np.rint(np.where(is_left, numbers * powers, numbers / powers))
    return np.where(is_left, whole / powers, whole * powers)
