"""Which function of torch a recorded name means. A name is looked up in a fixed set, never evaluated: a dump may come
from anyone, and calls nothing that reads files, loads code or hands out memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


_DATA = json.loads(_read("function.json"))
_CALLABLE = {space: frozenset(names) for space, names in json.loads(_read("callable.json")).items()}
"""What may be called, by the namespaces of torch. None of it opens a file, loads code, calls what it is given, waits,
changes a setting of torch or trusts an index without looking at it: whoever adds a name looks at its kernel first."""
DRAWS = frozenset(_DATA["draws"])
"""Functions whose result cannot be computed from their arguments: it is pinned."""
UNDEFINED = frozenset(_DATA["undefined"])
"""Functions that return memory as it is: what was recorded of it means nothing."""
VIEWS = frozenset(_DATA["views"])
"""Functions that give another look at the same memory."""
PLAIN = frozenset(_DATA["plain"])
"""Functions that sum or normalise: they give at most as much as the largest of what they are given, repeated to fit.
(Of what is computed element by element, torch knows that itself.)"""
OPERATORS = frozenset(_DATA["operators"])
"""The names in Python of operators that are computed element by element, and have another name in torch."""
PASSES_ON = frozenset(_DATA["passes_on"])
"""Functions that give back what they are given: a cast means nothing in float64."""
SAVES_NOTHING, SAVES_RESULT = frozenset(_DATA["saves_nothing"]), frozenset(_DATA["saves_result"])
"""What autograd keeps for their derivatives: nothing, or their results. Of all others it keeps what goes in."""
_NAMESPACES = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}
_GETTERS = frozenset({"T", "mT", "H", "mH", "real", "imag"})
_ODD_TYPES = ("Dict", "List[t]", "List[str]", "AnyEnumType", "Storage", "Stream", "Future", "RRef", "Any")
"""Arguments of operators that are there for scripts, not for tensors."""


class UnknownFunctionError(Exception):
    """No function of this name is called again."""


@cache
def find_function(prefix: str, op: str) -> Function:
    """`Functional`, `linear`: the function. UnknownFunctionError where there is none that may be called."""
    found = _FINDERS[prefix](op) if prefix in _FINDERS else None
    if not callable(found):
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
    if op not in _CALLABLE["functional"]:
        return None
    return getattr(F, op, None) or getattr(torch._C._nn, op, None)


def _find_torch(op: str) -> Function | None:
    space, _, name = op.rpartition(".")
    if space:
        is_known = space in _NAMESPACES and name in _CALLABLE[space]
        return getattr(_NAMESPACES[space], name, None) if is_known else None
    if name not in _CALLABLE["torch"]:
        return None
    # torch's own layers call some by names that torch does not show
    return getattr(torch, name, None) or getattr(torch._C._VariableFunctions, name, None)


def _find_method(op: str) -> Function | None:
    name, _, end = op.partition(".")
    if end == "__get__":  # .T, .real
        return getattr(torch.Tensor, name).__get__ if name in _GETTERS else None
    return getattr(torch.Tensor, name, None) if name in _CALLABLE["tensor"] and not end else None


def _find_operator(op: str) -> Function | None:
    """Only torch's own operators: any other library may do anything."""
    library, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    if library != "aten" or name not in _CALLABLE["aten"] or not hasattr(torch.ops.aten, name):
        return None
    packet = getattr(torch.ops.aten, name)
    if not overload:
        return partial(_call_overload, packet)
    found = getattr(packet, overload, None) if overload in packet.overloads() else None
    return found if found is not None and _is_of_tensors(found) else None


def _call_overload(packet: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator by the form that fits its arguments, if that is one of tensors."""
    name = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    found = getattr(packet, name or "default")
    if not _is_of_tensors(found):
        raise UnknownFunctionError(f"{found} computes no tensors")
    return found(*args, **kwargs)


def _is_of_tensors(overload: Any) -> bool:
    """Does it compute tensors? Some operators have forms for the lists and texts of scripts, too."""
    schema = overload._schema
    returns = [str(item.type) for item in schema.returns]
    takes = [str(item.type) for item in schema.arguments]
    is_odd = any(kind in text for text in takes for kind in _ODD_TYPES)
    return bool(returns) and all("Tensor" in text for text in returns) and not is_odd


_FINDERS: dict[str, Callable[[str], Function | None]] = {
    "Functional": _find_functional,
    "Torch": _find_torch,
    "Tensor": _find_method,
    "Ops": _find_operator,
}
