"""The tables of a page as text: numbers have no more digits than are shown, and what is the same is made once.

There are millions of cells, so they are looked at a column at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_ALIKE = frozenset({float, int, str, type(None)})
"""Where two of these are equal, so are their texts for a script. `True` equals 1, and is not among them."""


def encode_compact(value: Any) -> str:
    """Strict JSON without spaces; ValueError where there is a number that JSON lacks."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def encode_table(columns: Mapping[str, list[Any]], digits: int) -> str:
    """A table as JSON. A column with one value in all lines has it once, unless all columns are such."""
    constant = {name for name, column in columns.items() if _is_constant(column)}
    short = constant if len(constant) < len(columns) else set()
    texts = _Texts(digits)
    encoded = (
        f"{encode_compact(name)}:{_encode_column(column[:1] if name in short else column, texts)}"
        for name, column in columns.items()
    )
    return "{" + ",".join(encoded) + "}"


class _Texts(dict[Any, str]):
    """What is written of a value is made once: it goes out of one call and into the next, in both runs."""

    def __init__(self, digits: int) -> None:
        self._form = f"%.{digits}g"

    def __missing__(self, value: Any) -> str:
        if type(value) is not float:
            text = encode_compact(value)
        elif math.isfinite(value):
            text = self._form % value
        else:
            raise ValueError(f"{value} is a number that JSON lacks")
        self[value] = text
        return text


def _is_constant(column: list[Any]) -> bool:
    return len(column) > 1 and column.count(column[0]) == len(column) and len(set(map(type, column))) == 1


def _encode_column(column: list[Any], texts: _Texts) -> str:
    kinds = set(map(type, column))
    if float not in kinds:
        return encode_compact(column)
    if kinds <= _ALIKE:
        return f"[{','.join(map(texts.__getitem__, column))}]"
    return f"[{','.join(texts[one] if type(one) is float else encode_compact(one) for one in column)}]"
