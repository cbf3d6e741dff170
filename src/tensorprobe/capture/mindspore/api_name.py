"""What is recorded of MindSpore's functions, and under which names.

Functions are known by where they are found: `mindspore.ops` (Functional), `mindspore.mint` (Mint),
`mindspore.mint.nn.functional` (MintFunctional), `mindspore.Tensor` (Tensor). What is left out is data: `api.json`
beside this file. A user's api_yaml has the last word.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mindspore
import mindspore.mint.distributed
from mindspore import Tensor, mint, ops
from mindspore.communication import comm_func
from mindspore.ops import Primitive

from tensorprobe.config.api_list import ApiList
from tensorprobe.model.undefined import UNDEFINED_MEMORY

_DATA = json.loads(Path(__file__).with_name("api.json").read_text())
_EXCLUDED = {f"{prefix}.{name}" for prefix, names in _DATA["excluded"].items() for name in names}
_NEVER = {f"{prefix}.{name}" for prefix, names in _DATA["never"].items() for name in names}
_DUNDERS = frozenset(_DATA["dunders"])
_UNDEFINED_MEMORY = frozenset(_DATA["undefined_memory"])
_CHANGES_FIRST = frozenset(_DATA["changes_first"])
_RANDOM = frozenset(_DATA["random"])
_DTYPE_PLACES: dict[str, int] = _DATA["dtype_places"]

_COMMUNICATION = ("mindspore.ops.function.comm_func", comm_func.__name__, "mindspore.mint.distributed.distributed")

PRIMITIVE = "Primitive"


@dataclass(frozen=True, slots=True)
class ApiOwner:
    """A module or class whose functions are replaced for the time of a window."""

    prefix: str
    """`Functional`"""
    owner: Any
    names: tuple[str, ...]
    path: str = ""
    """What the names in records begin with: `linalg.` for `mindspore.mint.linalg`."""


@dataclass(frozen=True, slots=True)
class Api:
    """One function, as records know it."""

    stem: str
    """`Functional.relu`"""
    is_recorded: bool
    note: str | None
    """What to write into its records, such as that the memory it returns is undefined."""
    changes_first: bool
    """It returns nothing, and what comes out is its first argument."""
    is_random: bool
    """It draws from a random generator, or may do so."""
    caller: str | None = None
    """The part of the framework that it belongs to, where no frame of it tells."""
    is_collective: bool = False
    """It moves tensors between ranks."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a primitive was made with, as records have it."""
    tuples: tuple[str, ...] = ()
    """Where in that tuples are."""
    dtype_place: int | None = None
    """Of an operation that is seen by its kernel: which argument is the number of a dtype."""


class ApiNames:
    """Names of functions, and which of them are recorded."""

    def __init__(self, api_list: ApiList | None) -> None:
        self._api_list = api_list

    def make(self, prefix: str, name: str, note: str | None = None) -> Api:
        """An API by its name."""
        stem, last = f"{prefix}.{name}", name.rpartition(".")[2]
        # A primitive is known by its class, whatever it is called in its cell: `bias_add.BiasAdd` is a BiasAdd.
        # Those in small letters (`typeof`, `make_range`) compute types, shapes and sequences.
        known = last if prefix == PRIMITIVE else name
        is_recorded = f"{prefix}.{known}" not in _EXCLUDED and not (prefix == PRIMITIVE and known[:1].islower())
        if self._api_list is not None:
            asked = name if self._api_list.has_name(prefix, name) else known
            is_recorded = self._api_list.decide(prefix, asked, is_recorded)
        return Api(
            stem=stem,
            is_recorded=is_recorded,
            note=UNDEFINED_MEMORY if last in _UNDEFINED_MEMORY else note,
            changes_first=stem in _CHANGES_FIRST,
            is_random=last in _RANDOM,
            is_collective=prefix == "Distributed",
            dtype_place=_DTYPE_PLACES.get(name) if prefix == PRIMITIVE else None,
        )


@cache
def mindspore_owners() -> list[ApiOwner]:
    """Where MindSpore's own functions are found."""
    functional = mindspore.mint.nn.functional
    return [
        ApiOwner("Functional", ops, tuple(_functions(ops, "Functional"))),
        ApiOwner("Mint", mint, tuple(_functions(mint, "Mint"))),
        ApiOwner("Mint", mint.linalg, tuple(_functions(mint.linalg, "Mint")), "linalg."),
        ApiOwner("Mint", mint.special, tuple(_functions(mint.special, "Mint")), "special."),
        ApiOwner("MintFunctional", functional, tuple(_functions(functional, "MintFunctional"))),
        ApiOwner("Tensor", Tensor, tuple(tensor_methods(Tensor))),
        *(
            ApiOwner("Distributed", owner, tuple(_collectives(owner)))
            for owner in (mint.distributed, ops, ops.communication, comm_func)
        ),
    ]


def _collectives(owner: types.ModuleType) -> Iterator[str]:
    """Functions that move tensors between ranks: `ops.gather` is another. `isend` and `irecv` are left as they are,
    because `P2POp` knows them by identity."""
    for name in _DATA["collectives"]:
        if getattr(getattr(owner, name, None), "__module__", None) in _COMMUNICATION:
            yield name


def is_computing(prefix: str, name: str) -> bool:
    """Is a function one that takes or returns tensors, and may be replaced?"""
    return f"{prefix}.{name}" not in _NEVER


def tensor_methods(kind: type) -> Iterator[str]:
    """The methods of a tensor that compute something."""
    for name in dir(kind):
        value = getattr(kind, name)
        is_method = isinstance(value, (types.FunctionType, types.MethodDescriptorType))
        is_public = name in _DUNDERS if name.startswith("__") else not name.startswith("_")
        if is_method and is_public and is_computing("Tensor", name):
            yield name


def _functions(owner: types.ModuleType, prefix: str) -> Iterator[str]:
    for name in dir(owner):
        value = getattr(owner, name)
        if name.startswith("_") or not is_computing(prefix, name):
            continue
        if (isinstance(value, types.FunctionType) and _is_of_library(value)) or (
            isinstance(value, Primitive) and prefix == "Functional" and name in _DATA["primitive_functions"]
        ):
            yield name


def _is_of_library(function: Callable[..., Any]) -> bool:
    """A function of MindSpore that computes; those that communicate have records of their own."""
    module = str(getattr(function, "__module__", ""))
    return module.startswith("mindspore.") and module not in _COMMUNICATION
