"""What several ranks have in common must be the same on all of them: a parameter that all hold, and what a call makes
of the same inputs. A rank that drifted from its peers is found without a reference.

Parts of one weight on two ranks have one name and one shape, too. They are told from replicas by their numbers: a
replica that drifted is still much like the others, and a part of something else is not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.communication import read_communication
from tensorprobe.replay.invocation import is_random, is_undefined
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors, is_bit_equal
from tensorprobe.replay.reduced_gradient import read_reductions
from tensorprobe.replay.result import Finding
from tensorprobe.replay.true_step_builder import iter_plain
from tensorprobe.run.leaf import Leaf

_LIKE = 0.9
"""A correlation from which on two tensors are one that drifted."""
_CHANCE = 5.0
"""Of few numbers it must be larger, so that chance makes it hardly ever: by so many deviations (Fisher)."""
_CLEARLY = 1e-2
"""By so much of its size must a result differ that was not drawn: kernels may add up in another order."""
_LEAST = 4


@dataclass(frozen=True)
class _Copy:
    """One tensor on one rank."""

    rank: int
    operation: str
    slot: str
    content: torch.Tensor


def find_drifts(
    programs: Mapping[int, Program], recorded: Mapping[int, RecordedTensors]
) -> Iterator[tuple[int, Finding]]:
    """The ranks that have something else than their peers, and what; of the results of calls the first one."""
    yield from _find_parameters(programs, recorded)
    first = next(_find_results(programs, recorded), None)
    if first is not None:
        yield first


def _find_parameters(
    programs: Mapping[int, Program], recorded: Mapping[int, RecordedTensors]
) -> Iterator[tuple[int, Finding]]:
    averaged = {name for program in programs.values() for one in read_reductions(program) for name in one.parameters}
    copies: dict[tuple[str, tuple[int, ...]], list[_Copy]] = {}
    for rank, program in programs.items():
        seen: set[str] = set()
        for operation in program.calls():
            for leaf in operation.operands:
                if leaf.parameter is None or leaf.parameter in seen or leaf.sharding is not None or leaf.source:
                    continue
                seen.add(leaf.parameter)
                content = _load(recorded[rank], leaf)
                if content is not None and content.is_floating_point():
                    copy = _Copy(rank, operation.name, leaf.slot, content)
                    copies.setdefault((leaf.parameter, leaf.shape), []).append(copy)
    for (name, _), found in copies.items():
        for group in _group(found, is_one=name in averaged):
            yield from _name_odd(name, group)


def _find_results(
    programs: Mapping[int, Program], recorded: Mapping[int, RecordedTensors]
) -> Iterator[tuple[int, Finding]]:
    """Calls of one name that are given the same, and return something else."""
    by_name = {rank: {one.name: one for one in program.calls()} for rank, program in programs.items()}
    first = min(by_name)
    for name, operation in by_name[first].items():
        if not _is_comparable(operation):
            continue
        alike = {rank: calls[name] for rank, calls in by_name.items() if name in calls and calls[name].has_ended}
        groups = _group_by_inputs(alike, recorded)
        for group in (one for one in groups if len(one) > 1):
            for leaf in operation.outputs if leaf_is_telling(operation.outputs) else ():
                copies = [
                    _Copy(rank, name, leaf.slot, content)
                    for rank in group
                    if (content := _load_slot(recorded[rank], alike[rank], leaf.slot)) is not None
                ]
                if len(copies) == len(group) and _is_clear(operation, copies):
                    yield from _name_odd(f"{leaf.slot} of {name}, which is given the same on all of them", copies)


def leaf_is_telling(leaves: Sequence[Leaf]) -> bool:
    """Is there a floating-point tensor of some size among them?"""
    return any(leaf.is_floating and leaf.element_count >= _LEAST for leaf in leaves)


def _is_comparable(operation: Operation) -> bool:
    if operation.is_module or operation.prefix == "Autograd" or operation.inside is not None or not operation.has_ended:
        return False
    if read_communication(operation) is not None or (is_undefined(operation) and not is_random(operation)):
        return False
    leaves = (*operation.inputs, *operation.outputs)
    return leaf_is_telling(operation.inputs) and not any(leaf.sharding is not None for leaf in leaves)


def _is_clear(operation: Operation, copies: Sequence[_Copy]) -> bool:
    if is_random(operation) or "dropout" in operation.op:
        return True
    first = copies[0].content.double()
    scale = float(first.norm())
    return any(float((copy.content.double() - first).norm()) > _CLEARLY * scale for copy in copies[1:])


def _group_by_inputs(calls: Mapping[int, Operation], recorded: Mapping[int, RecordedTensors]) -> list[list[int]]:
    """The ranks that give the same tensors and the same arguments."""
    groups: list[tuple[object, list[torch.Tensor], list[int]]] = []
    for rank, operation in calls.items():
        given = [_load(recorded[rank], leaf) for leaf in operation.inputs]
        known = [tensor for tensor in given if tensor is not None]
        if len(known) < len(given):
            continue
        plain = repr(sorted((slot, repr(value)) for slot, value in iter_plain(operation)))
        for other, tensors, ranks in groups:
            is_alike = other == (operation.op, plain) and len(tensors) == len(known)
            if is_alike and all(map(is_bit_equal, tensors, known)):
                ranks.append(rank)
                break
        else:
            groups.append(((operation.op, plain), known, [rank]))
    return [ranks for *_, ranks in groups]


def _group(copies: Sequence[_Copy], *, is_one: bool) -> list[list[_Copy]]:
    """Those that are one parameter, as far as their numbers tell; all of them where that is known."""
    if is_one:
        return [list(copies)]
    groups: list[list[_Copy]] = []
    for copy in copies:
        for group in groups:
            if is_bit_equal(group[0].content, copy.content) or _is_like(group[0].content, copy.content):
                group.append(copy)
                break
        else:
            groups.append([copy])
    return groups


def _is_like(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Is one the other after a drift? A rank may have hundreds of peers, and a bias four numbers."""
    by_chance = math.tanh(_CHANCE / math.sqrt(max(first.numel() - 3, 1)))
    return _correlate(first, second) > max(_LIKE, by_chance)


def _correlate(first: torch.Tensor, second: torch.Tensor) -> float:
    """0 where one of them is constant, which says nothing."""
    one, other = (tensor.double().reshape(-1) - tensor.double().mean() for tensor in (first, second))
    size = float(one.norm() * other.norm())
    return float(one @ other) / size if size and one.numel() >= _LEAST else 0.0


def _name_odd(what: str, copies: Sequence[_Copy]) -> Iterator[tuple[int, Finding]]:
    """The fewer ones; of two that differ, the second."""
    kinds: list[list[_Copy]] = []
    for copy in copies:
        for kind in kinds:
            if is_bit_equal(kind[0].content, copy.content):
                kind.append(copy)
                break
        else:
            kinds.append([copy])
    if len(kinds) < 2:
        return
    usual = max(kinds, key=len)
    scale = float(usual[0].content.double().norm()) or 1.0
    peers = ", ".join(str(copy.rank) for copy in usual[:8])
    for odd in (copy for kind in kinds if kind is not usual for copy in kind):
        error = float((odd.content.double() - usual[0].content.double()).norm()) / scale
        words = f"Rank {odd.rank} has something else than its peers (rank {peers}): {what}"
        words += f" (relative difference {error:.2g})"
        yield odd.rank, Finding("replica", odd.operation, odd.slot, other=words)


def _load_slot(recorded: RecordedTensors, operation: Operation, slot: str) -> torch.Tensor | None:
    leaf = next((leaf for leaf in operation.outputs if leaf.slot == slot), None)
    return _load(recorded, leaf) if leaf is not None and leaf.is_floating else None


def _load(recorded: RecordedTensors, leaf: Leaf) -> torch.Tensor | None:
    try:
        return recorded.load(leaf)
    except (MissingContentError, UnknownArgumentError):
        return None
