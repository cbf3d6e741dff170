"""`rank` and `step`: 3, "3", "4-6", "0-1000:100", "every 100", "every 100 from 50", or a list of these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral

from tensorprobe.config.setting import Setting

# A set is kept of every number: a mistyped range must not fill the memory.
MAX_RANGE_LENGTH = 1_000_000

_COLLECTIONS = (list, tuple, set, frozenset, range)
_NUMBER_OR_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
_SERIES = re.compile(r"every +([0-9]{1,18})(?: +from +([0-9]{1,18}))?")
_ACCEPTED = (
    'is not an integer from 0 up, a string like "3", or a range like "4-6", "0-1000:100", "every 100" or '
    '"every 100 from 50"'
)


@dataclass(frozen=True, order=True)
class Series:
    """Every so many numbers, without an end."""

    stride: int
    first: int = 0

    def __contains__(self, number: int) -> bool:
        return number >= self.first and (number - self.first) % self.stride == 0

    def __str__(self) -> str:
        return f"every {self.stride}" + (f" from {self.first}" if self.first else "")


@dataclass(frozen=True)
class EndlessNumbers:
    """Numbers of which there is no last: one series or several, and single numbers besides."""

    series: frozenset[Series]
    others: frozenset[int] = frozenset()
    """Those that are in no series."""

    def __contains__(self, number: int) -> bool:
        return number in self.others or any(number in series for series in self.series)

    def __repr__(self) -> str:
        return repr([*sorted(self.others), *map(str, sorted(self.series))])


Numbers = frozenset[int] | EndlessNumbers


def is_past(number: int, numbers: Numbers) -> bool:
    """Do all of them come before this one? Without any nothing is filtered, and there is no end."""
    return isinstance(numbers, frozenset) and bool(numbers) and number > max(numbers)


def read_numbers(setting: Setting) -> Numbers:
    """All the numbers of a setting; none is no filter.

    >>> sorted(read_numbers(Setting("step", [0, "4-6"])))
    [0, 4, 5, 6]
    >>> read_numbers(Setting("step", ["every 100", "0-2", 200]))
    [1, 2, 'every 100']
    """
    value = setting.value
    entries = value if isinstance(value, _COLLECTIONS) else (value,)
    numbers: set[int] = set()
    found: set[Series] = set()
    for entry in entries:
        one = _read_entry(setting.of_item(entry))
        if isinstance(one, Series):
            found.add(one)
        else:
            numbers.update(one)
    if not found:
        return frozenset(numbers)
    series = frozenset(one for one in found if not any(_contains(other, one) for other in found - {one}))
    return EndlessNumbers(series, frozenset(number for number in numbers if not any(number in one for one in series)))


def _contains(series: Series, other: Series) -> bool:
    return other.stride % series.stride == 0 and other.first in series


def _read_entry(setting: Setting) -> range | Series:
    entry = setting.value
    if isinstance(entry, str):
        series = _SERIES.fullmatch(entry)
        return _read_range(setting, entry) if series is None else _read_series(setting, series)
    # Integral, because the integers of numpy are no int.
    if isinstance(entry, bool) or not isinstance(entry, Integral) or int(entry) < 0:
        raise setting.error(_ACCEPTED)
    return range(int(entry), int(entry) + 1)


def _read_range(setting: Setting, text: str) -> range:
    match = _NUMBER_OR_RANGE.fullmatch(text)
    if match is None:
        raise setting.error(_ACCEPTED)
    first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        written_stride = f":{match[3]}" if match[3] else ""
        raise setting.error("ends before it begins", f'write "{last}-{first}{written_stride}"')
    if stride < 1:
        raise setting.error("has the stride 0", f'write a stride from 1 up, like "{first}-{last}:10"')
    if (last - first) // stride >= MAX_RANGE_LENGTH:
        raise setting.error(f"holds more than {MAX_RANGE_LENGTH} numbers", "leave the key out for no filter")
    return range(first, last + 1, stride)


def _read_series(setting: Setting, match: re.Match[str]) -> Series:
    stride, first = int(match[1]), int(match[2] or 0)
    if stride < 1:
        raise setting.error("has the stride 0", 'write a number from 1 up, like "every 100"')
    return Series(stride, first)
