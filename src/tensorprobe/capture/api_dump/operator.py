"""Operators of Python in a scope: PyTorch shows `x @ y` as the call of a method, and records have its name.

TroubleShooter writes `Tensor___matmul___1`, which is what MindSpore shows.
"""

from __future__ import annotations

from dataclasses import replace

from tensorprobe.config.api_dump import ApiDumpOptions, ScopeName
from tensorprobe.model.name import ApiName, parse_name

_METHODS = {
    "__abs__": "abs",
    "__add__": "add",
    "__ge__": "ge",
    "__gt__": "gt",
    "__iadd__": "add_",
    "__imul__": "mul_",
    "__isub__": "sub_",
    "__itruediv__": "div_",
    "__le__": "le",
    "__lt__": "lt",
    "__matmul__": "matmul",
    "__mod__": "remainder",
    "__mul__": "mul",
    "__ne__": "ne",
    "__neg__": "neg",
    "__radd__": "add",
    "__rmul__": "mul",
    "__sub__": "sub",
    "__truediv__": "div",
}


def name_methods(options: ApiDumpOptions) -> ApiDumpOptions:
    """The same options with the names that PyTorch has for operators."""
    return replace(options, names=tuple(map(_name_method, options.names)))


def _name_method(name: ScopeName) -> ScopeName:
    parsed = parse_name(f"{name.call}_forward")
    if not isinstance(parsed, ApiName) or parsed.prefix != "Tensor":
        return name
    return replace(name, call=replace(parsed, name=_METHODS.get(parsed.name, parsed.name)).call)
