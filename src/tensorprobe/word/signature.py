"""Which arguments a function takes, in their order; the signatures are in signature.json, in a short notation.

    input, dim:axis=-1, *, dtype=None      PyTorch's `dim` is called `axis` here, and has this default
    input, *dims                           the rest, one by one or as one sequence
    input, +pad_mode='valid'               an argument that PyTorch does not have
    input, p:1-keep_prob=0.5               what is given here is 1 minus what PyTorch is given

pytorch      by operation: a function and the method of its name take the same, but for `Tensor.where`
mindspore    by prefix (`nn`, `mint.nn`: what layers are made with), where it differs from PyTorch's in order, a name
             or a default; a primitive: what it is called with. What it was made with has slots of its own.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

MINDSPORE = "mindspore"
PRIMITIVE = "Primitive"


class _Missing:
    def __repr__(self) -> str:
        return "no default"


MISSING = _Missing()
"""The default of an argument that has none."""

ALIASES = {"axis": "dim", "keepdims": "keepdim", "keep_dims": "keepdim", "x": "input", "axes": "dims"}
"""Further keywords that both frameworks take for an argument, whatever its signature says."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function."""

    name: str
    """PyTorch's, or, where PyTorch has no such argument, its own."""
    own_name: str
    default: Any = MISSING
    """As the function itself spells it."""
    is_keyword_only: bool = False
    is_rest: bool = False
    is_extra: bool = False
    """PyTorch has no such argument."""
    is_complement: bool = False
    """It is 1 minus what PyTorch is given."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a function, in their order."""

    arguments: tuple[Argument, ...]

    def by_position(self, position: int) -> Argument | None:
        """The argument at a place; at and behind that of the rest, the rest."""
        for index, argument in enumerate(self.arguments):
            if argument.is_keyword_only:
                return None
            if index == position or argument.is_rest:
                return argument
        return None

    def by_keyword(self, keyword: str) -> Argument | None:
        """By its own name, by PyTorch's, or by one that is taken everywhere."""
        wanted = (keyword, ALIASES.get(keyword, keyword))
        for argument in self.arguments:
            if keyword == argument.own_name:
                return argument
        return next((argument for argument in self.arguments if argument.name in wanted), None)

    def place(self, argument: Argument) -> int:
        return self.arguments.index(argument)


@cache
def signatures() -> dict[str, Any]:
    """The whole table."""
    content: dict[str, Any] = json.loads(files("tensorprobe.word").joinpath("signature.json").read_text("utf-8"))
    return content


@cache
def find_signature(framework: str, prefix: str, op: str, word: str) -> Signature | None:
    """Of a function by its name in its own framework; `word` is what PyTorch calls it. None: not known."""
    text = signatures()[MINDSPORE].get(prefix, {}).get(op) if framework == MINDSPORE else None
    if text is None and not (framework == MINDSPORE and prefix == PRIMITIVE):
        known = signatures()["pytorch"]
        text = known.get(f"{prefix}.{word}", known.get(word))
    return None if text is None else read_signature(text)


@cache
def read_signature(text: str) -> Signature:
    """The notation above.

    >>> [argument.own_name for argument in read_signature("input, dim:axis=-1, *, dtype=None").arguments]
    ['input', 'axis', 'dtype']
    """
    arguments: list[Argument] = []
    is_keyword_only = False
    for item in _split(text):
        if item == "*":
            is_keyword_only = True
            continue
        arguments.append(_read_argument(item, is_keyword_only))
        is_keyword_only = is_keyword_only or arguments[-1].is_rest
    return Signature(tuple(arguments))


def _read_argument(item: str, is_keyword_only: bool) -> Argument:
    names, equals, default = item.partition("=")
    is_rest, is_extra = names.startswith("*"), names.startswith("+")
    name, _, own_name = names.lstrip("*+").partition(":")
    is_complement = own_name.startswith("1-")
    return Argument(
        name=name,
        own_name=own_name.removeprefix("1-") or name,
        default=ast.literal_eval(default) if equals else MISSING,
        is_keyword_only=is_keyword_only,
        is_rest=is_rest,
        is_extra=is_extra,
        is_complement=is_complement,
    )


def _split(text: str) -> list[str]:
    """At its commas, but not inside of a tuple."""
    items, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            items.append("")
        else:
            items[-1] += sign
    return [item.strip() for item in items]
