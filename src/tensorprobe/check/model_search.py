"""The models that a function uses: those it is given, is a method of, or finds in its closure and its globals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

_MAX_DEPTH = 4
IsModel = Callable[[Any], bool]


def find_models(values: list[Any], is_model: IsModel) -> list[Any]:
    """Each once, without those that are part of another one."""
    seen: dict[int, Any] = {}
    waiting = [(value, 0) for value in values]
    while waiting:
        value, depth = waiting.pop(0)
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen[id(value)] = value
        if not is_model(value):
            waiting += [(child, depth + 1) for child in _children(value)]
    models = [value for value in seen.values() if is_model(value)]
    return [model for model in models if not any(_is_inside(model, other) for other in models)]


def _is_inside(model: Any, other: Any) -> bool:
    if model is other:
        return False
    parts = other.modules() if hasattr(other, "modules") else (part for _, part in other.cells_and_names())
    return any(part is model for part in parts)


def _children(value: Any) -> Iterator[Any]:
    """What a value that is no model may use."""
    if isinstance(value, (list, tuple, set)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif callable(value) and not isinstance(value, type):
        yield from _used_by(value)


def _used_by(function: Any) -> Iterator[Any]:
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield owner
        yield from getattr(owner, "__dict__", {}).values()
    yield getattr(function, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        yield cell.cell_contents if _is_filled(cell) else None
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", None)
    if isinstance(code, CodeType) and isinstance(names, dict):
        yield from (names[name] for name in _names_in(code) if name in names)
    if code is None and owner is None:  # an object that can be called
        yield from getattr(function, "__dict__", {}).values()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that has no value yet
        return False


def _names_in(code: CodeType) -> Iterator[str]:
    """Of globals and attributes, also in the functions that are defined inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
