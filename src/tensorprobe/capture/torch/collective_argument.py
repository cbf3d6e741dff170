"""The arguments of collectives: which of them hold tensors, and which of those are written to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorprobe.capture.torch.api_name import COLLECTIVES, Api
from tensorprobe.capture.torch.content import tensors_in

_WRITTEN = {"gather": "gather_list", "broadcast_coalesced": "tensors"}
"""Which argument a collective writes to, where it is not the first."""

_WRITES_NOTHING = ("send", "isend", "barrier")
_READS_WHAT_IT_WRITES = (
    *("all_reduce", "all_reduce_coalesced", "allreduce", "allreduce_coalesced", "reduce", "broadcast_coalesced"),
)

FUNCTIONS: dict[str, Any] = (
    {name: getattr(torch.distributed.distributed_c10d, name, None) for name in COLLECTIVES}
    if torch.distributed.is_available()
    else {}
)
"""As torch defines them: other tools put theirs in their place, and theirs call these."""


def find_written(api: Api, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a collective writes to."""
    name = api.stem.removeprefix("Distributed.")
    if name not in _WRITES_NOTHING:
        values = name_arguments(name, args, kwargs)
        yield from tensors_in(values.get(_WRITTEN[name]) if name in _WRITTEN else next(iter(values.values()), None))


def find_received(api: Api, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Of those, the ones that it does not read: they only take what comes from the other ranks."""
    name = api.stem.removeprefix("Distributed.")
    is_read = name in _READS_WHAT_IT_WRITES or (name == "broadcast" and is_source(args, kwargs))
    return [] if is_read else list(find_written(api, args, kwargs))


def is_source(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Is this the rank that a broadcast sends from?"""
    try:
        given = inspect.signature(FUNCTIONS["broadcast"]).bind(*args, **kwargs).arguments
    except TypeError:  # a method of ProcessGroup: there is no telling
        return True
    in_group = given.get("group_src")
    if in_group is not None:
        return bool(in_group == torch.distributed.get_rank(given.get("group")))
    return bool(given.get("src") == torch.distributed.get_rank())


def name_arguments(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a collective that can hold tensors, by name, in the order of its signature."""
    try:
        bound = inspect.signature(FUNCTIONS[name]).bind(*args, **kwargs)
        values: dict[str, Any] = dict(bound.arguments)
    except (KeyError, TypeError, ValueError):  # a method of ProcessGroup has no signature
        values = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    return {key: value for key, value in values.items() if holds_tensors(value)}


def describe_transfer(method: str, args: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """The arguments of ProcessGroup.send and recv, as isend and irecv have them; None for a call of another form."""
    if not args or not isinstance(args[0], list) or len(args[0]) != 1:
        return None
    names = {"send": ("group_dst", "tag"), "recv": ("group_src", "tag")}.get(method, ("tag",))
    return (args[0][0],), dict(zip(names, args[1:], strict=False))


def holds_tensors(value: Any) -> bool:
    """Is it a tensor, or a list with one in it?"""
    if isinstance(value, (list, tuple)):
        return any(holds_tensors(item) for item in value)
    return isinstance(value, torch.Tensor)
