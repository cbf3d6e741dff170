"""Do two runs with the same number of ranks share out one program alike, so that each rank stands against its namesake?

By what was recorded of the leaves, parameters and data, and of the collectives; no tensor is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprobe.replay.communication import read_communications
from tensorprobe.replay.program import Program, read_program
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.reader import RankDump

Mark = tuple[Any, ...]
"""Equal for the same content."""
_STATISTICS = ("Max", "Min", "Mean", "Norm")


@dataclass(frozen=True)
class _Share:
    """What one rank has of the program."""

    parameters: Mapping[Mark, tuple[int, ...]]
    """Their shapes, by what marks their contents."""
    data: Mapping[Mark, tuple[int, ...]]
    collectives: Sequence[tuple[Any, ...]]


def find_other_layout(reference: Sequence[RankDump], candidate: Sequence[RankDump]) -> str | None:
    """What tells that a rank is not the counterpart of its namesake, in words; None where nothing does."""
    shares = [_read_shares(ranks) for ranks in (reference, candidate)]
    for rank, own in shares[1].items():
        namesake = shares[0][rank]
        for what in ("parameters", "data"):
            here, there = getattr(own, what), getattr(namesake, what)
            if Counter(here.values()) != Counter(there.values()):
                return f"rank {rank} has {what} of other sizes than rank {rank} of the reference"
            lost = [mark for mark in here if mark not in there]
            others = {number: getattr(share, what) for number, share in shares[0].items() if number != rank}
            holder = next((number for number, held in others.items() if any(mark in held for mark in lost)), None)
            if holder is not None:
                return f"rank {rank} has {what} of rank {holder} of the reference"
        if own.collectives != namesake.collectives:
            return f"rank {rank} does not communicate as rank {rank} of the reference does"
    return None


def _read_shares(ranks: Sequence[RankDump]) -> dict[int, _Share]:
    found = {}
    for rank in ranks:
        program = read_program(rank)
        leaves = list(_iter_leaves(program))
        found[rank.rank or 0] = _Share(
            {_mark(leaf): leaf.stored_shape for leaf in leaves if leaf.parameter is not None},
            {_mark(leaf): leaf.stored_shape for leaf in leaves if leaf.parameter is None},
            [(*one.describe()[:2], _count_read(one.reads), one.ranks) for one in read_communications(program)],
        )
    return found


def _iter_leaves(program: Program) -> Iterator[Leaf]:
    """What no call made, each once."""
    seen: set[object] = set()
    for operation in program.calls():
        for leaf in operation.operands:
            key = leaf.parameter or leaf.tensor
            if leaf.source is None and not leaf.is_undefined and leaf.element_count > 1 and key not in seen:
                seen.add(key)
                yield leaf


def _mark(leaf: Leaf) -> Mark:
    return (leaf.stored_shape, *(leaf.fields.get(name) for name in _STATISTICS))


def _count_read(leaves: Sequence[Leaf]) -> int:
    return sum(leaf.element_count for leaf in leaves)
