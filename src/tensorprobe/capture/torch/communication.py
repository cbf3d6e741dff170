"""What a collective exchanges, as a field of its record: with whom, in which place of the group's order, what it reads
and what it writes. Enough to compute its result again from what all ranks gave to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.capture.torch.collective_argument import FUNCTIONS

_FUNCTIONAL = ("_c10d_functional.", "_c10d_functional_autograd.")
_KINDS = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "allreduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(("all_gather", "all_gather_coalesced", "allgather"), "all_gather"),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_single", "_all_gather_base", "_allgather_base"), "all_gather"
    ),
    **dict.fromkeys(
        ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"), "reduce_scatter"
    ),
    **dict.fromkeys(("all_to_all", "all_to_all_single", "alltoall", "alltoall_base"), "all_to_all"),
    **dict.fromkeys(("broadcast", "broadcast_coalesced"), "broadcast"),
    **{name: name for name in ("reduce", "gather", "scatter", "barrier")},
    **dict.fromkeys(("send", "isend"), "send"),
    **dict.fromkeys(("recv", "irecv"), "recv"),
}
"""What a function does, by its name."""
_READ_AND_WRITTEN = ("all_reduce", "broadcast", "reduce")
"""Kinds that have one argument, and put the result there."""
_WRITTEN_FIRST = ("all_gather", "reduce_scatter", "all_to_all", "scatter")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_AXES = {"output_split_sizes": "output_splits", "input_split_sizes": "input_splits"}
_SIGNATURES = {"broadcast_coalesced": ("group", "tensors", "buffer_size", "src")}
"""Of functions that cannot be asked for theirs."""
_NO_TENSOR = ("group", "op", "async_op", "src", "dst", "group_src", "group_dst", "tag", *_AXES, "root", "src_rank")

Count = Callable[[str], int]
"""How many there were of this name."""


@dataclass(frozen=True)
class Given:
    """One argument of a collective: what it is called, where it stands in the record, what it is."""

    name: str
    slot: str
    value: Any


def describe_exchange(
    stem: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], group: Any, count: Count
) -> dict[str, Any] | None:
    """The field of a record; None for a call that is not known here. `group`: the process group, where it is no
    argument."""
    name = stem.removeprefix("Distributed.")
    if name.startswith(_FUNCTIONAL):
        return _describe_functional(name.split(".", 1)[1], args, kwargs, count)
    kind = _KINDS.get(name)
    if kind is None:
        return None
    given = _name_arguments(name, args, kwargs)
    by_name = {item.name: item.value for item in given}
    found = next((item.value for item in given if isinstance(item.value, torch.distributed.ProcessGroup)), None)
    group = found if found is not None else group
    described: dict[str, Any] = {"kind": kind, "group": describe_group(group)}
    tensors = [item.slot for item in given if item.name not in _NO_TENSOR and _holds_tensor(item.value)]
    described |= dict(zip(("reads", "writes"), _find_flow(kind, tensors), strict=True))
    if kind in _REDUCING:
        described["op"] = describe_reduction(by_name.get("op", _option(given, "reduceOp")))
    described |= {axis: list(by_name[key]) for key, axis in _AXES.items() if by_name.get(key)}
    described |= _describe_peer(kind, {"group_src": _option(given, "rootRank"), **by_name}, group)
    if by_name.get("async_op"):
        described["async"] = True
    return _number(described, count)


def describe_group(group: Any) -> dict[str, Any]:
    """A process group: what its ranks call it, and the global numbers of its ranks."""
    group = group if group is not None else torch.distributed.group.WORLD
    return {"name": str(group.group_name), "ranks": list(torch.distributed.get_process_group_ranks(group))}


def describe_reduction(op: Any) -> str:
    """`sum`, `avg`, `max` …"""
    if op is None:
        return "sum"
    name = op if isinstance(op, str) else getattr(op, "name", None) or str(op)
    return str(name).rpartition(".")[2].lower()


def _describe_functional(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], count: Count
) -> dict[str, Any] | None:
    base = name.removesuffix("_out").removesuffix("_")
    kind = _KINDS.get(base.removesuffix("_coalesced"))
    if kind is None or not args:
        return None
    group = _resolve(kwargs.get("group_name", args[-1]))
    described: dict[str, Any] = {"kind": kind, "group": describe_group(group), "reads": ["input.0"], "writes": []}
    if name.endswith("_out"):
        described["writes"] = ["kwargs.out"]
    elif name.endswith("_"):
        described["writes"] = ["input.0"]
    if kind in _REDUCING:
        described["op"] = describe_reduction(args[1])
    elif kind == "broadcast":
        described["root"] = int(args[1])
    elif kind == "all_to_all":
        described |= {"output_splits": list(args[1]), "input_splits": list(args[2])}
    return _number({**described, "async": True}, count)


def _resolve(name: Any) -> Any:
    """The group of this name; newer versions of torch hand over the group itself."""
    if isinstance(name, str):
        return torch.distributed.distributed_c10d._resolve_process_group(name)
    return name


def _name_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Given]:
    """The arguments by the names that the function gives them, in its order."""
    slots = [f"input.{number}" for number in range(len(args))] + [f"kwargs.{key}" for key in kwargs]
    values = [*args, *kwargs.values()]
    function = FUNCTIONS.get(name)
    names: list[str] = [*(str(number) for number in range(len(args))), *kwargs]
    parameters = _SIGNATURES.get(name) or (tuple(inspect.signature(function).parameters) if function else ())
    if parameters:
        names = [*parameters[: len(args)], *kwargs]
        order = {parameter: number for number, parameter in enumerate(parameters)}
        if len(names) == len(values) and all(item in order for item in names):
            given = [Given(*item) for item in zip(names, slots, values, strict=True)]
            return sorted(given, key=lambda item: order[item.name])
    return [Given(*item) for item in zip(names, slots, values, strict=False)]


def _option(given: list[Given], name: str) -> Any:
    """Of a method of ProcessGroup, whose settings are in an object of their own."""
    return next((getattr(item.value, name) for item in given if hasattr(item.value, name)), None)


def _find_flow(kind: str, tensors: list[str]) -> tuple[list[str], list[str]]:
    """Which of the places that hold tensors are read, and which are written."""
    if kind in _READ_AND_WRITTEN:
        return tensors[:1], tensors[:1]
    if kind in _WRITTEN_FIRST:
        return tensors[1:2], tensors[:1]
    if kind == "gather":
        return tensors[:1], tensors[1:2]
    return (tensors[:1], []) if kind == "send" else ([], tensors[:1]) if kind == "recv" else ([], [])


def _describe_peer(kind: str, given: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """Whom it sends to or receives from, as a global rank."""
    if kind not in ("broadcast", "reduce", "gather", "scatter", "send", "recv"):
        return {}
    inside = next((given[key] for key in ("group_src", "group_dst", "src_rank") if given.get(key) is not None), None)
    ranks = describe_group(group)["ranks"]
    found = next((given[key] for key in ("src", "dst", "root") if given.get(key) is not None), None)
    if inside is not None:
        found = ranks[int(inside)]
    elif found is None and kind in ("broadcast", "reduce", "gather", "scatter"):
        found = ranks[0]
    tag = {"tag": int(given.get("tag") or 0)} if kind in ("send", "recv") else {}
    key = "peer" if kind in ("send", "recv") else "root"
    return {key: int(found) if found is not None else None, **tag}


def _number(described: dict[str, Any], count: Count) -> dict[str, Any]:
    """The place in the order of its group; of what is sent, in the order between its two ranks."""
    key = f"collective {described['group']['name']}"
    if described["kind"] in ("send", "recv"):
        key += f" {described['kind']} {described['peer']} {described['tag']}"
    return {**described, "number": count(key)}


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
