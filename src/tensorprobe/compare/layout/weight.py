"""Which part of which parameter of the reference each rank of the candidate holds, found by the numbers, and what the
gradients of the two are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.layout.part import Part, locate
from tensorprobe.compare.layout.pool import Ranks, Steps, find_groups
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.replay.true_step import Array

_EXACT = 1e-12


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter of the reference, put together from the ranks that hold it."""

    name: str
    ranks: Ranks
    content: Array
    gradient: Array | None
    updated: Array | None


@dataclass(frozen=True, eq=False)
class Held:
    """What one rank of the candidate has of it."""

    rank: int
    name: str
    weight: Weight
    part: Part
    gradient: Array | None
    updated: Array | None

    @property
    def expected(self) -> Array | None:
        """The gradient that it should have."""
        return None if self.weight.gradient is None else self.part.take(self.weight.gradient)

    @property
    def expected_update(self) -> Array | None:
        return None if self.weight.updated is None else self.part.take(self.weight.updated)


@dataclass(frozen=True, eq=False)
class Stray:
    """A parameter of the candidate that the reference has not got."""

    rank: int
    name: str
    content: Array
    nearest: Weight | None
    part: Part | None
    """Where its numbers should be, by where those of its peers are."""
    error: float | None


@dataclass(frozen=True, eq=False)
class Holdings:
    """All parameters of the candidate."""

    weights: tuple[Weight, ...]
    held: tuple[Held, ...]
    strays: tuple[Stray, ...]

    def of(self, weight: Weight) -> list[Held]:
        return [one for one in self.held if one.weight is weight]

    @property
    def missing(self) -> list[str]:
        """Those of the reference that no rank holds, or not all of."""
        covered = {weight.name for weight in self.weights if _is_covered(weight, self.of(weight))}
        return [name for name in dict.fromkeys(weight.name for weight in self.weights) if name not in covered]


def match_weights(reference: Steps, candidate: Steps) -> Holdings:
    """Find each parameter of the candidate in the reference."""
    weights = list(_iter_weights(reference))
    held: list[Held] = []
    lone: list[tuple[int, str]] = []
    for rank, one in candidate.items():
        for name, content in one.parameters.items():
            found = _find(name, content, weights)
            if found is None:
                lone.append((rank, name))
            else:
                held.append(Held(rank, name, *found, one.gradients.get(name), one.updated.get(name)))
    strays = tuple(_describe_stray(rank, name, candidate, held, weights) for rank, name in lone)
    return Holdings(tuple(dict.fromkeys(weights)), tuple(held), strays)


def _find(name: str, content: Array, weights: Sequence[Weight]) -> tuple[Weight, Part] | None:
    """Rather in the one of its name: many hold nothing but ones."""
    for weight in sorted(weights, key=lambda one: (one.name != name, not one.name.endswith(name))):
        if weight.content.dtype.kind == content.dtype.kind:
            part = locate(content, weight.content, _EXACT)
            if part is not None:
                return weight, part
    return None


def _iter_weights(reference: Steps) -> Iterator[Weight]:
    """Those of each name: as they are, where all ranks have the same, else one behind the other."""
    names = dict.fromkeys(name for one in reference.values() for name in one.parameters)
    for name in names:
        holders = [rank for rank, one in reference.items() if name in one.parameters]
        groups = [group for group in find_groups(reference) if set(group) <= set(holders)]
        joined = [weight for group in groups for weight in _iter_joined(name, group, reference)]
        yield from joined
        if not joined:
            first = reference[holders[0]]
            content = first.parameters[name]
            yield Weight(name, (holders[0],), content, first.gradients.get(name), first.updated.get(name))


def _iter_joined(name: str, group: Ranks, reference: Steps) -> Iterator[Weight]:
    contents = [reference[rank].parameters[name] for rank in group]
    if all(is_same(contents[0], other, _EXACT) for other in contents[1:]):
        return
    for dim in range(contents[0].ndim):
        if len({array.shape[:dim] + array.shape[dim + 1 :] for array in contents}) == 1:
            joined = [
                _concatenate([found.get(name) for found in parts], dim)
                for parts in (
                    [reference[rank].gradients for rank in group],
                    [reference[rank].updated for rank in group],
                )
            ]
            yield Weight(name, group, np.concatenate(contents, dim), *joined)


def _concatenate(arrays: Sequence[Array | None], dim: int) -> Array | None:
    known = [array for array in arrays if array is not None]
    return np.concatenate(known, dim) if len(known) == len(arrays) else None


def _is_covered(weight: Weight, held: Sequence[Held]) -> bool:
    numbers = np.arange(weight.content.size).reshape(weight.content.shape) + 1
    taken = [one.part.take(numbers).reshape(-1) for one in held]
    return len(np.setdiff1d(numbers, np.concatenate(taken))) == 0 if taken else False


def _describe_stray(rank: int, name: str, candidate: Steps, held: Sequence[Held], weights: Sequence[Weight]) -> Stray:
    """It should be where it is on a peer, or in the parameter of its name."""
    content = candidate[rank].parameters[name]
    peers = [one for one in held if one.name == name]
    places: list[tuple[Weight, Part]] = [(one.weight, one.part) for one in peers]
    places += [(one, Part()) for one in weights if one.name == name]
    nearest: tuple[float, Weight, Part] | None = None
    for weight, part in places:
        expected = part.take(weight.content)
        if expected.shape == content.shape:
            scale = float(np.linalg.norm(expected)) or 1.0
            error = float(np.linalg.norm(content - expected)) / scale
            if nearest is None or error < nearest[0]:
                nearest = (error, weight, part)
    if nearest is None:
        return Stray(rank, name, content, None, None, None)
    return Stray(rank, name, content, nearest[1], nearest[2], nearest[0])


def count_kinds(holdings: Holdings, rank_count: int) -> Mapping[str, int]:
    """How many weights are whole on one rank or on all, cut, or otherwise."""
    found = {"replicated": 0, "cut": 0, "placed": 0}
    for name in dict.fromkeys(one.weight.name for one in holdings.held):
        held = [one for one in holdings.held if one.weight.name == name]
        is_whole = all(one.part.is_whole for one in held)
        kind = "cut" if not is_whole else "replicated" if len({one.rank for one in held}) == rank_count else "placed"
        found[kind] += 1
    return found
