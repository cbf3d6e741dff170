"""All values of the reference that a value of the candidate may be a part of: those of each of its ranks, and, where it
has several, what they are together: one behind the other, or added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.true_step import Array, TrueCall

Ranks = tuple[int, ...]
Steps = Mapping[int, RankStep]
_PROBES = 5
_BIASES = ("input.2", "kwargs.bias")


@dataclass(frozen=True, eq=False)
class Known:
    """A value of the reference, or of several of its ranks together."""

    array: Array
    ranks: Ranks
    call: TrueCall | None
    """None for a leaf."""
    name: str
    """What to call it: a parameter, or the place in its call."""

    @cached_property
    def _sorted(self) -> Array:
        return np.sort(self.array, axis=None)

    def may_contain(self, part: Array, tolerance: float) -> bool:
        """Are a few of its numbers there? Most values are refuted by them."""
        if self.array.size == part.size and self.array.shape != part.shape:
            return True
        if self.array.ndim != part.ndim or any(map(int.__gt__, part.shape, self.array.shape)):
            return False
        if part.dtype.kind not in "fiu":
            return True
        flat, known = part.reshape(-1), self._sorted
        probes = flat[np.linspace(0, flat.size - 1, min(_PROBES, flat.size)).astype(np.int64)]
        room = 100 * tolerance * float(np.abs(known[[0, -1]]).max(initial=0.0))
        behind = np.searchsorted(known, probes).clip(0, known.size - 1)
        before = (behind - 1).clip(0)
        with np.errstate(invalid="ignore"):
            nearest = np.minimum(np.abs(known[behind] - probes), np.abs(known[before] - probes))
        return not (nearest > room).any()


def find_groups(steps: Steps) -> list[Ranks]:
    """The ranks that do something together, small groups first."""
    found = {tuple(sorted(one.ranks)) for step in steps.values() for one in step.communications.values()}
    return sorted(
        (ranks for ranks in found | {tuple(sorted(steps))} if len(ranks) > 1), key=lambda one: (len(one), one)
    )


class Pool:
    """The values of one side, to be looked through."""

    def __init__(self, steps: Steps) -> None:
        self._by_form: dict[tuple[int, str], list[Known]] = defaultdict(list)
        self._by_place: dict[tuple[str, str | None], list[Known]] = defaultdict(list)
        for known in _iter_known(steps):
            self._by_form[known.array.ndim, known.array.dtype.kind].append(known)
            if known.call is not None:
                self._by_place[word_of(known.call), known.call.module_path].append(known)

    def find(self, array: Array, call: TrueCall | None, tolerance: float) -> Iterator[Known]:
        """Those that may contain an array, the likely ones first: made by the same, in the same module."""
        likely = self._by_place[word_of(call), call.module_path] if call is not None else []
        seen = set(map(id, likely))
        for known in (*likely, *(one for one in self._by_form[array.ndim, array.dtype.kind] if id(one) not in seen)):
            if known.array.dtype.kind == array.dtype.kind and array.size and known.may_contain(array, tolerance):
                yield known


def _iter_known(steps: Steps) -> Iterator[Known]:
    for rank, one in steps.items():
        for value in one.step.values:
            yield Known(value.array, (rank,), one.step.maker(value), value.parameter or value.slot)
        yield from _iter_products(one)
    if len(steps) > 1:
        for group in find_groups(steps):
            yield from _iter_joined(group, steps)


def _iter_products(one: RankStep) -> Iterator[Known]:
    """What a linear layer computes before it adds its bias: ranks that have a part of it each add it up before that."""
    for call in one.step.calls.values():
        bias = next((call.inputs[slot] for slot in _BIASES if slot in call.inputs), None)
        if bias is not None and word_of(call) == "linear":
            for slot, number in call.outputs.items():
                product = one.step.values[number].array - one.step.values[bias].array
                yield Known(product, (one.rank,), call, f"{slot} without the bias")


def _iter_joined(group: Ranks, steps: Steps) -> Iterator[Known]:
    first = steps[group[0]].step
    for call in first.calls.values():
        for slot in call.outputs:
            arrays = find_arrays(group, steps, call.name, slot)
            if arrays is not None:
                for array in join_arrays(arrays):
                    yield Known(array, group, call, slot)


def find_arrays(group: Collection[int], steps: Steps, call: str, slot: str) -> list[Array] | None:
    """The results of one call on all ranks of a group; None where one has it not, or of another size."""
    found = []
    for rank in group:
        own = steps[rank].step.calls.get(call) if rank in steps else None
        number = own.outputs.get(slot) if own is not None else None
        if number is None:
            return None
        found.append(steps[rank].step.values[number].array)
    return found if len({(array.shape, array.dtype) for array in found}) == 1 else None


def join_arrays(arrays: Sequence[Array]) -> Iterator[Array]:
    """Added up, and one behind the other along each dimension; nothing where all are the same."""
    if all(is_same(arrays[0], other) for other in arrays[1:]):
        return
    if arrays[0].dtype.kind == "f":
        yield np.sum(arrays, axis=0)
    for dim in range(arrays[0].ndim):
        yield np.concatenate(arrays, dim)
