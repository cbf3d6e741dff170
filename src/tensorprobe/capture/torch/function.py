"""Which function of torch a recorded name means. A name is looked up in a fixed set, never evaluated: a dump may come
from anyone, and calls nothing that reads files, loads code or hands out memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]

_DATA = json.loads(Path(__file__).with_name("function.json").read_text())
_FACTORIES = frozenset(_DATA["factories"])
_DENIED_FUNCTIONS = frozenset(_DATA["denied_functions"])
_DENIED_METHODS = frozenset(_DATA["denied_methods"])
"""Methods that compute nothing, hand out memory, run what they are given, or look into pickles."""
DRAWS = frozenset(_DATA["draws"])
"""Functions whose result cannot be computed from their arguments: it is pinned."""
UNDEFINED = frozenset(_DATA["undefined"])
"""Functions that return memory as it is: what was recorded of it means nothing."""
_OPERATOR = re.compile(
    r"__(?:[ir]?(?:add|sub|mul|truediv|floordiv|div|mod|pow|matmul|and|or|xor|lshift|rshift)"
    r"|neg|pos|abs|invert|eq|ne|lt|le|gt|ge|getitem|setitem|reversed)__"
)
_FUNCTIONAL_MODULES = ("torch.nn.functional", "torch._jit_internal")
_NAMESPACES = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}


class UnknownFunctionError(Exception):
    """No function of this name is called again."""


@cache
def find_function(prefix: str, op: str) -> Function:
    """`Functional`, `linear`: the function. UnknownFunctionError where there is none that may be called."""
    is_denied = not {*op.split(".")}.isdisjoint(_DENIED_FUNCTIONS | _DENIED_METHODS)
    found = _FINDERS[prefix](op) if prefix in _FINDERS and not is_denied else None
    if found is None:
        raise UnknownFunctionError(f"{prefix}.{op} is no function of torch that is known here")
    return found


def can_be_called_again(prefix: str, op: str) -> bool:
    """Does a replay compute its result from its arguments?"""
    try:
        find_function(prefix, op)
    except UnknownFunctionError:
        return False
    return base_op(prefix, op) not in DRAWS


def base_op(prefix: str, op: str) -> str:
    """The function itself: `empty` of `aten.empty.memory_format`, `norm` of `linalg.norm`."""
    parts = op.split(".")
    return parts[1] if prefix == "Ops" and len(parts) > 1 else parts[-1]


def _find_functional(op: str) -> Function | None:
    found = getattr(F, op, None) if not op.startswith("_overload") else None
    is_own = getattr(found, "__module__", None) in _FUNCTIONAL_MODULES and not isinstance(found, type)
    return found if is_own or _is_builtin(found) else _builtin(torch._C._nn, op)


def _find_torch(op: str) -> Function | None:
    space, _, name = op.rpartition(".")
    if space:
        return _builtin(_NAMESPACES.get(space), name)
    found = getattr(torch, name, None)
    if name in _FACTORIES or getattr(found, "__module__", None) == "torch.functional":
        return found
    # torch's own layers call some by names that torch does not show
    return found if _is_variable_function(found) else _builtin(torch._C._VariableFunctions, name)


def _find_method(op: str) -> Function | None:
    if op.startswith("_") and not _OPERATOR.fullmatch(op):
        return None
    name, _, end = op.partition(".")
    found = getattr(torch.Tensor, name, None)
    if end == "__get__":  # .T, .real
        return found.__get__ if found is not None and name in ("T", "mT", "H", "mH", "real", "imag") else None
    return found if not end and callable(found) else None


def _find_operator(op: str) -> Function | None:
    """Only torch's own operators: any other library may do anything."""
    library, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    if library != "aten" or not name or name.startswith("_"):
        return None
    if any(word in overload.lower() for word in ("filename", "storage")):
        return None
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, overload, None) if packet is not None and overload else packet


def _builtin(owner: Any, name: str) -> Function | None:
    found = getattr(owner, name, None) if not name.startswith("__") else None
    return found if _is_builtin(found) else None


def _is_builtin(function: Any) -> bool:
    return type(function).__name__ == "builtin_function_or_method"


def _is_variable_function(function: Any) -> bool:
    """Is it one of those that torch generates for its operators?"""
    return _is_builtin(function) and "_VariableFunctions" in str(getattr(function, "__qualname__", ""))


_FINDERS: dict[str, Callable[[str], Function | None]] = {
    "Functional": _find_functional,
    "Torch": _find_torch,
    "Tensor": _find_method,
    "Ops": _find_operator,
}
