"""One cell of a table for other programs.

Text that a spreadsheet would take for a formula must stay text; numbers stay numbers.
"""

from __future__ import annotations

import math
import re
from typing import Any

from tensorprobe.report.escape import clean

Cell = str | int | float | bool | None

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # the wide ones count in Asian locales
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def make_cell(value: Any) -> Cell:
    """A field of a row as a number, a truth value or harmless text; shapes and indices become `[2, 3]`."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, (tuple, list)):
        return str(list(value))
    return clean(str(value))


def defuse(text: str) -> str:
    """An apostrophe before what a spreadsheet would take for a formula; numbers are none."""
    if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) and text != "-Infinity":
        return f"'{text}"
    return text
