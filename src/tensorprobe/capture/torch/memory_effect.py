"""What a function reads and writes of the memory it is given, as far as that decides whether memory is defined.
Found once per function: by its name, and for operators of torch.ops by their schema.

The names are data: `api.json` beside this file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_DATA = json.loads(Path(__file__).with_name("api.json").read_text())
_HANDS_OUT = tuple(f".{name}" for name in _DATA["hands_out_memory"])
_WRITES_FIRST = re.compile(r"__(setitem|i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift|matmul))__")
_UNDEFINED = frozenset(_DATA["undefined_memory"])
_OF_TORCH = ("Torch", "Tensor", "Ops")


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """What a function does to memory. Without any field: it reads its arguments, and returns new memory or views."""

    makes_undefined: bool = False
    """What it returns is undefined."""
    undefined_but_for: tuple[int, int] | None = None
    """This result is undefined, except where it is this other result, which lies in the same memory."""
    grows: bool = False
    """It may add undefined memory to its first argument."""
    hands_out: bool = False
    """From now on its memory may be written to unseen."""
    is_idle: bool = False
    """It neither reads nor writes what tensors hold."""
    reads_first_only: bool = False
    reads_first_by_beta: bool = False
    """Its first argument counts `beta` times: where that is 0, it is not read."""
    is_view: bool = False
    is_index: bool = False
    """It returns a view where its second argument is made of numbers and slices alone."""
    moves: bool = False
    """Each element that it returns is one of its first argument's, whatever that is."""
    writes_first: bool = False
    overwrites: bool = False
    """What it writes to it does not read."""
    mixes: bool = False
    """Each element that it writes may depend on all others."""
    value_at: tuple[int, str] | None = None
    """It writes this argument, element by element, to its first one: to all of it, or to places that others tell."""
    declared: tuple[tuple[int, str], ...] = ()
    """The arguments that the schema of an operator says it writes to."""
    is_opaque: bool = False
    """It may write to what it is given without saying so."""
    runs_unseen: bool = False
    """What runs inside of it is not seen, and may write anywhere."""
    has_calls_inside: bool = False
    """The calls inside of it are seen, and tell all."""


def find_effect(prefix: str, name: str, is_excluded: bool) -> MemoryEffect:
    """`is_excluded`: by default it is not recorded, because it computes nothing."""
    stem = f"{prefix}.{name}"
    function = _function_name(prefix, name)
    value_at = _DATA["writes_at_index"].get(function)
    but_for = _DATA["undefined_but_for"].get(".".join(stem.split(".")[:3]))
    hands_out = stem.endswith(_HANDS_OUT)
    is_named_so = function.endswith("_") and not function.endswith("__")
    return MemoryEffect(
        makes_undefined=stem in _UNDEFINED or (prefix in _OF_TORCH and function in _UNDEFINED),
        undefined_but_for=None if but_for is None else tuple(but_for),
        grows=function in _DATA["grows_memory"],
        hands_out=hands_out,
        is_idle=(is_excluded and not hands_out) or function in _DATA["ignores_content"],
        reads_first_only=function in _DATA["reads_first"],
        reads_first_by_beta=function in _DATA["reads_first_by_beta"],
        is_view=function in _DATA["views"],
        is_index=function == "__getitem__",
        moves=function in _DATA["moves_elements"],
        writes_first=is_named_so or bool(_WRITES_FIRST.fullmatch(function)),
        overwrites=function in _DATA["overwrites"],
        mixes=function in _DATA["mixes_elements"],
        value_at=None if value_at is None else tuple(value_at),
        is_opaque=prefix in ("Jit", "NPU") or (prefix == "Ops" and not name.startswith(("aten.", "prims."))),
        runs_unseen=prefix == "Jit",
        has_calls_inside=prefix == "Autograd",
    )


def declared_writes(function: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that an operator of torch.ops writes to, by place and by name, in any of its forms."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads = [getattr(function, name) for name in function.overloads()]
    else:
        overloads = [function] if isinstance(function, torch._ops.OpOverload) else []
    return tuple(
        (place, argument.name)
        for overload in overloads
        for place, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _function_name(prefix: str, name: str) -> str:
    """`copy_` of `Tensor.copy_`, `Ops.aten.copy_.default` and `Torch.nn.init.copy_`."""
    if prefix == "Ops":
        return name.split(".")[1] if "." in name else name
    return name.rpartition(".")[2]
