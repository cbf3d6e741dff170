"""`rank` and `step`: 3, "3", "4-6", or a list of these."""

from __future__ import annotations

import re
from numbers import Integral

from tensorprobe.config.setting import Setting

# A set is kept of every number: a mistyped range must not fill the memory.
MAX_RANGE_LENGTH = 1_000_000

_COLLECTIONS = (list, tuple, set, frozenset, range)
_NUMBER_OR_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_ACCEPTED = 'is not an integer from 0 up, a string like "3", or a range like "4-6"'


def read_numbers(setting: Setting) -> frozenset[int]:
    """All the numbers of a setting; none is no filter.

    >>> sorted(read_numbers(Setting("step", [0, "4-6"])))
    [0, 4, 5, 6]
    """
    value = setting.value
    entries = value if isinstance(value, _COLLECTIONS) else (value,)
    numbers: set[int] = set()
    for entry in entries:
        numbers.update(_read_entry(setting.of_item(entry)))
    return frozenset(numbers)


def _read_entry(setting: Setting) -> range:
    entry = setting.value
    if isinstance(entry, str):
        return _read_range(setting, entry)
    # Integral, because the integers of numpy are no int.
    if isinstance(entry, bool) or not isinstance(entry, Integral) or int(entry) < 0:
        raise setting.error(_ACCEPTED)
    return range(int(entry), int(entry) + 1)


def _read_range(setting: Setting, text: str) -> range:
    match = _NUMBER_OR_RANGE.fullmatch(text)
    if match is None:
        raise setting.error(_ACCEPTED)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise setting.error("ends before it begins", f'write "{last}-{first}"')
    if last - first >= MAX_RANGE_LENGTH:
        raise setting.error(f"holds more than {MAX_RANGE_LENGTH} numbers", "leave the key out for no filter")
    return range(first, last + 1)
