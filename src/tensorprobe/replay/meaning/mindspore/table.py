"""The table of what MindSpore's functions mean in torch. The files beside this one fill it.

A meaning takes what MindSpore's function takes, in its order and with its defaults. Keywords of one sense are called
alike first, so that one meaning serves `ops`, `mint`, the methods of tensors and the primitives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

OPS, MINT, MINT_F, METHOD, PRIMITIVE = "Functional", "Mint", "MintFunctional", "Tensor", "Primitive"
FUNCTIONS = (OPS, MINT, METHOD)

_KEYWORDS = {
    "axis": "dim",
    "axis0": "dim0",
    "axis1": "dim1",
    "axis2": "dim2",
    "indices": "index",
    "input_x": "input",
    "keep_dims": "keepdim",
    "keepdims": "keepdim",
    "logits": "input",
    "labels": "target",
    "ddof": "correction",
    "x": "input",
}
OWN_RESULTS = {"BatchNorm": (1, 2, 3, 4), "Dropout": (1,), "LSTM": (3, 4)}
"""Of primitives, results that serve their own backward only, or are memory that nobody wrote to. They mean nothing."""

Function = Callable[..., Any]
Meaning = TypeVar("Meaning", bound=Function)


@dataclass(frozen=True)
class Entry:
    """The meaning of one function."""

    function: Function
    needs_context: bool


TABLE: dict[tuple[str, str], Entry] = {}
"""By prefix and name; a primitive by its class."""


def means(names: str, *prefixes: str, needs_context: bool = False) -> Callable[[Meaning], Meaning]:
    """What the functions of these names, in these places, mean. Classes of primitives begin with a capital letter, and
    are found in no other place."""

    def register(function: Meaning) -> Meaning:
        for name in names.split():
            is_class = name.lstrip("_")[:1].isupper()
            for prefix in (PRIMITIVE,) if is_class else prefixes:
                add(prefix, name, function, needs_context)
        return function

    return register


def add(prefix: str, name: str, function: Function, needs_context: bool = False) -> None:
    """One function."""
    if (prefix, name) in TABLE:
        raise ValueError(f"{prefix}.{name} has a meaning already")
    TABLE[prefix, name] = Entry(function, needs_context)


def find_entry(prefix: str, op: str) -> Entry | None:
    """`Functional`, `softmax`; of a primitive `layer_norm.LayerNorm`, the class decides."""
    return TABLE.get((prefix, op.rpartition(".")[2] if prefix == PRIMITIVE else op))


def common_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords as all meanings call them."""
    return {_KEYWORDS.get(name, name): value for name, value in kwargs.items()}


def spread(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """`x.reshape(2, 3)` and `x.reshape((2, 3))`"""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
