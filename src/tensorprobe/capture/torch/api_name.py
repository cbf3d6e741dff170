"""What a function of torch is called in a record, and which calls are left out. Decided once per function, then looked
up.

The default exclusions are data: `api.json` beside this file. A user's api_yaml has the last word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.overrides import resolve_name

from tensorprobe.capture.torch.function import can_be_called_again
from tensorprobe.capture.torch.memory_effect import MemoryEffect, declared_writes, find_effect
from tensorprobe.capture.torch.written import Written, find_written
from tensorprobe.config.api_list import ApiList
from tensorprobe.model.undefined import UNDEFINED_MEMORY

_DATA = json.loads(Path(__file__).with_name("api.json").read_text())
_EXCLUDED = {f"{prefix}.{name}" for prefix, names in _DATA["excluded"].items() for name in names}
_EXCLUDED_BEGINNINGS = tuple(_DATA["excluded_beginnings"])
_EXCLUDED_ENDINGS = tuple(_DATA["excluded_endings"])
_EXPOSES_MEMORY = frozenset(_DATA["exposes_memory"])

_WRITES_UNSEEN = frozenset(_DATA["writes_unseen"])
_WRITES_UNSEEN_BEGINNINGS = tuple(_DATA["writes_unseen_beginnings"])  # on a GPU, one kernel for many tensors
_CHANGES_FIRST = frozenset(_DATA["changes_first"])
_RANDOM = frozenset(_DATA["random"])
_FUNCTIONAL_COLLECTIVES = ("_c10d_functional.", "_c10d_functional_autograd.")
_FOREIGN = ("Distributed", "Autograd", "Jit", "NPU")

# Torch names functions by tables that it fills once, from its attributes: they must be filled before any is patched.
torch.overrides.resolve_name(torch.add)
torch.overrides.get_testing_overrides()

COLLECTIVES: tuple[str, ...] = tuple(_DATA["collectives"])
"""Functions of torch.distributed that move tensors between ranks."""


@dataclass(frozen=True, slots=True)
class Api:
    """One function, as records know it."""

    stem: str
    """`Functional.linear`"""
    is_recorded: bool
    note: str | None
    """What to write into its records, such as that the memory it returns is undefined."""
    exposes_memory: bool
    """It hands out memory that may then be written without torch noticing."""
    may_write_unseen: bool
    """It may write into tensors without torch noticing: a custom operator, a normalisation with running statistics."""
    changes_first: bool
    """It returns nothing, and what comes out is its first argument."""
    effect: MemoryEffect
    """What it does to undefined memory."""
    written: Written | None = None
    """What it writes to besides what it returns."""
    is_random: bool = False
    """It draws from a random generator, or may do so."""
    is_pinned: bool = True
    """It cannot be executed again from its record: its result is taken as recorded."""
    is_function: bool = False
    """An autograd Function of the program: what it calls is recorded, too."""
    is_functional_collective: bool = False
    """It starts a collective whose result is there when somebody has waited for it, or waits for one."""


class ApiNames:
    """Names of functions, remembered per function object."""

    def __init__(self, api_list: ApiList | None) -> None:
        self._api_list = api_list
        self._known: dict[Any, Api] = {}
        self._made: dict[tuple[str, str, str | None], Api] = {}

    def find(self, function: Any) -> Api:
        """The record name of a function."""
        try:
            return self._known[function]
        except KeyError:
            api = self._known[function] = self._make(function)
            return api
        except TypeError:  # an object that cannot be hashed
            return self._make(function)

    def make(self, prefix: str, name: str, note: str | None = None) -> Api:
        """An API that comes with its name: a collective, an autograd Function."""
        key = (prefix, name, note)
        if key not in self._made:
            self._made[key] = self._make_named(prefix, name, note)
        return self._made[key]

    def _make_named(self, prefix: str, name: str, note: str | None) -> Api:
        stem = f"{prefix}.{name}"
        is_excluded = stem in _EXCLUDED or stem.startswith(_EXCLUDED_BEGINNINGS) or stem.endswith(_EXCLUDED_ENDINGS)
        is_recorded = not is_excluded
        if self._api_list is not None:
            is_recorded = self._api_list.decide(prefix, name, is_recorded)
        effect = find_effect(prefix, name, is_excluded)
        return Api(
            stem=stem,
            is_recorded=is_recorded,
            note=UNDEFINED_MEMORY if effect.makes_undefined else note,
            exposes_memory=stem in _EXPOSES_MEMORY,
            may_write_unseen=prefix in _FOREIGN or writes_unseen(prefix, name),
            changes_first=stem in _CHANGES_FIRST,
            is_random=name in _RANDOM,
            is_pinned=prefix != "Autograd" and not can_be_called_again(prefix, name),
            written=find_written(prefix, name),
            is_function=prefix == "Autograd",
            effect=effect,
            is_functional_collective=prefix == "Distributed" and name.startswith(_FUNCTIONAL_COLLECTIVES),
        )

    def _make(self, function: Any) -> Api:
        api = self.make(*split_name(qualified_name(function)))
        declared = declared_writes(function) if api.effect.is_opaque else ()
        return replace(api, effect=replace(api.effect, declared=declared)) if declared else api


def qualified_name(function: Any) -> str:
    """`torch.nn.functional.linear`, `torch.Tensor.add`, `aten.add`, or for a function that torch does not know its
    own path."""
    resolved = resolve_name(function)
    if resolved:
        return _usual_name(str(resolved), function)
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    return f"{module}.{name}" if module else str(name)


def _usual_name(resolved: str, function: Any) -> str:
    """Of several names of one function torch tells the last one, as `torch.spmm` for `torch.mm`: rather one that a
    replay can call."""
    told = resolved.removeprefix("torch.")
    if "." in told or can_be_called_again("Torch", told) or not isinstance(function, BuiltinFunctionType):
        return resolved
    named = ((name, one) for name, one in vars(torch).items() if isinstance(one, BuiltinFunctionType))
    usual = (name for name, one in named if one == function and can_be_called_again("Torch", name))
    return f"torch.{next(usual, told)}"


def split_name(qualified: str) -> tuple[str, str]:
    """Prefix and name of a record.

    >>> split_name("torch.nn.functional.linear")
    ('Functional', 'linear')
    """
    if qualified.startswith(_FUNCTIONAL_COLLECTIVES):
        return "Distributed", qualified.removesuffix(".default")
    for start, prefix in _PREFIXES:
        if qualified.startswith(start):
            return prefix, qualified[len(start) :]
    return "Ops", qualified


def writes_unseen(prefix: str, name: str) -> bool:
    """May a function write without a new version? A custom operator may do anything; aten's are torch's own."""
    if prefix == "Ops":
        library, _, rest = name.partition(".")
        return library != "aten" or writes_unseen("Torch", rest.partition(".")[0])
    stem = f"{prefix}.{name}"
    return stem in _WRITES_UNSEEN or stem.startswith(_WRITES_UNSEEN_BEGINNINGS)


_PREFIXES = (
    ("torch.nn.functional.", "Functional"),
    ("torch._VariableFunctionsClass.", "Torch"),
    ("torch._C._nn.", "Functional"),
    ("torch.Tensor.", "Tensor"),
    ("torch._tensor.Tensor.", "Tensor"),
    ("torch.distributed.", "Distributed"),
    ("torch_npu.", "NPU"),
    ("torch.ops.npu.", "NPU"),
    ("npu.", "NPU"),
    ("torch.ops.", "Ops"),
    ("torch._VF.", "Torch"),
    ("torch.functional.", "Torch"),
    ("torch.", "Torch"),
)
