"""Rows as lines of text, a column at a time: of millions of cells, most are empty or one of a few texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any

import numpy as np

from tensorprobe.compare.row import Block, count_block

_FRACTIONS = frozenset({float, complex})
_REPEATED = frozenset({str, tuple, type(None)})


@dataclass(frozen=True)
class LineForm:
    """How the cells of a row become a line."""

    make_text: Callable[[Any], str]
    """Of any value but a finite float."""
    separator: str
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """What stands before the cells of a column; nothing where it is not named."""
    makers: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """For columns whose texts are made otherwise."""
    number: str = "%r"
    """A finite float."""


def iter_lines(block: Block, form: LineForm) -> Iterator[str]:
    """The line of each row."""
    numbers = _NumberTexts(form.number)
    columns = [_make_texts(name, column, form, numbers) for name, column in block.items()]
    joined = _join_constants(columns, form.separator, count_block(block))
    return map(form.separator.join, zip(*joined, strict=True))


def _join_constants(columns: Sequence[str | Iterable[str]], separator: str, count: int) -> Iterator[Iterable[str]]:
    """Half of the columns have one text in all rows: those beside each other become one."""
    for is_constant, found in groupby(columns, lambda column: isinstance(column, str)):
        if is_constant:
            yield repeat(separator.join(map(str, found)), count)
        else:
            yield from found


class _NumberTexts(dict[float, str]):
    """What is written of a number is made once: a value goes out of one call and into the next, in both runs."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __missing__(self, number: float) -> str:
        text = self[number] = self._form % number
        return text


def _make_texts(name: str, column: Sequence[Any], form: LineForm, numbers: _NumberTexts) -> str | Iterable[str]:
    """One text, where all are the same."""
    prefix, make_text = form.prefixes.get(name, ""), form.makers.get(name, form.make_text)
    if type(column[0]) in _REPEATED and column.count(column[0]) == len(column):
        return prefix + make_text(column[0])
    kinds = set(map(type, column))
    if (len(kinds) == 1 and not kinds & _FRACTIONS) or kinds <= _REPEATED:
        texts = {one: prefix + make_text(one) for one in set(column)}
        return [texts[one] for one in column] if len(texts) > 1 else next(iter(texts.values()))
    if kinds == {float} and all(map(math.isfinite, column)):
        if _has_negative_zero(column):
            return [prefix + form.number % one for one in column]
        if len(set(column)) == 1:
            return f"{prefix}{form.number % column[0]}"
        found = map(numbers.__getitem__, column)
        return map(prefix.__add__, found) if prefix else found
    return [prefix + make_text(one) for one in column]


def _has_negative_zero(column: Sequence[float]) -> bool:
    """It equals the other zero, and is written otherwise."""
    found = np.asarray(column)
    return bool((np.signbit(found) & (found == 0)).any())
