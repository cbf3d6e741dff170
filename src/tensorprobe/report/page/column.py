"""Tables of a page: a list for each column, and one list of the texts that repeat.

A page of fifty thousand rows is a file of a few megabytes only this way. Numbers that JSON lacks are strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from tensorprobe.compare.row import COLUMNS, Block, Row

NOTHING = -1
"""In place of the number of a text."""

_OF_CALL = frozenset(
    {
        *("step", "rank", "role", "because", "rule", "module_path", "direction", "caller"),
        *("reference_location", "candidate_location"),
    }
)
"""Columns of a row that are those of its call."""
_ROW_COLUMNS = tuple(field for field in fields(Row) if field.name not in _OF_CALL)
_TEXTS = frozenset(field.name for field in _ROW_COLUMNS if "str" in str(field.type) or "tuple" in str(field.type))
_LARGEST_FLOAT = 10**308
_LARGEST_EXACT = 2**53
"""A script reads whole numbers beyond it as another one."""


class Strings:
    """Texts, each once, known by their numbers."""

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self.listed = list(listed)
        self._numbers = {text: number for number, text in enumerate(self.listed)}

    def add(self, text: str | None) -> int:
        """The number of a text; NOTHING for none."""
        if text is None:
            return NOTHING
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.listed)
            self.listed.append(text)
        return number

    def add_all(self, texts: Iterable[str | None]) -> list[int]:
        return self.add_made(texts, lambda text: text)

    def add_made(self, values: Iterable[Any], make: Callable[[Any], str | None]) -> list[int]:
        """The numbers of what `make` makes of the values, which repeat: each is made once."""
        listed = list(values)
        if listed and listed.count(listed[0]) == len(listed):
            return [self.add(make(listed[0]))] * len(listed)
        numbers = {value: self.add(make(value)) for value in dict.fromkeys(listed)}
        return [numbers[value] for value in listed]


def make_number(value: Any) -> Any:
    """As JSON can hold it: `"NaN"`, `"Infinity"`, and as text what is no real number."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not -_LARGEST_EXACT <= value <= _LARGEST_EXACT:
        return float(value) if abs(value) <= _LARGEST_FLOAT else str(value)
    return str(value) if isinstance(value, complex) else value


def join_blocks(blocks: Iterable[Block]) -> Block:
    """All rows as one block."""
    listed = list(blocks)
    return {name: list(chain.from_iterable(block[name] for block in listed)) for name in COLUMNS}


def build_row_columns(rows: Block, calls: Sequence[int], places: Sequence[int], strings: Strings) -> dict[str, Any]:
    """All rows; columns that are empty in all of them are left out."""
    columns: dict[str, Any] = {"call": list(calls), "place": list(places)}
    if NOTHING in columns["call"]:
        columns["module_path_s"] = strings.add_all(_list_lone_modules(rows["module_path"], calls))
    for field in _ROW_COLUMNS:
        name = field.name
        found = rows[name]
        if found.count(None) == len(found):
            continue
        if name in _TEXTS:
            columns[f"{name}_s"] = strings.add_made(found, _make_text)
        elif _is_plain(found, set(map(type, found)) - {type(None)}):
            columns[name] = found
        else:
            columns[name] = [make_number(value) for value in found]
    return columns


def _list_lone_modules(modules: Sequence[str | None], calls: Sequence[int]) -> list[str | None]:
    """The module of a call without a partner: that of the others is in the table of calls."""
    return [module if call == NOTHING else None for module, call in zip(modules, calls, strict=True)]


def _is_plain(column: Sequence[Any], kinds: set[type]) -> bool:
    """Can JSON hold all of it as it is? Seen at once, because most columns are such."""
    if not kinds <= {bool, int, float}:
        return False
    numbers = [one for one in column if one is not None]
    if int in kinds and not (min(numbers) >= -_LARGEST_EXACT and max(numbers) <= _LARGEST_EXACT):
        return False
    return float not in kinds or all(map(math.isfinite, numbers))


def _make_text(value: Any) -> str | None:
    """`[2, 3]` for a shape or an index."""
    return value if value is None or isinstance(value, str) else str(list(value))
