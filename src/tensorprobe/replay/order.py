"""Do the ranks make the collectives of a group in one order? Where they do not, they cannot be done again together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tensorprobe.replay.board import describe_absent
from tensorprobe.replay.communication import TRANSFERS, Communication, Key, read_communications
from tensorprobe.replay.program import Program
from tensorprobe.replay.reduced_gradient import read_reductions
from tensorprobe.replay.spread_call import is_inside_spread

Ranks = tuple[int, ...]
ByNumber = dict[int, dict[int, Communication]]
"""The n-th call of a group on each of its ranks."""


@dataclass
class Order:
    """Which collectives are not done together, and why."""

    refusals: dict[Key, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def check_order(programs: Mapping[int, Program]) -> Order:
    """Compare the collectives of ranks that are replayed together."""
    order = Order()
    groups: dict[tuple[str, Ranks], ByNumber] = defaultdict(lambda: defaultdict(dict))
    sent: set[Key] = set()
    received: dict[Key, Communication] = {}
    for rank, program in programs.items():
        for call in _read(program):
            if call.kind == "send":
                sent.add(call.key(rank))
            elif call.kind == "recv":
                received[call.key(rank)] = call
            else:
                groups[call.group, call.ranks][call.number][rank] = call
    for (_, ranks), calls in groups.items():
        absent = [rank for rank in ranks if rank not in programs]
        if absent:
            order.remarks.append(_describe_absent(absent, ranks, len(calls)))
        else:
            _check_group(order, ranks, calls, programs)
    for key, call in received.items():
        if key not in sent and call.root in programs:
            _refuse(order, key, f"rank {call.root} sends nothing that it could receive")
    return order


def _check_group(order: Order, ranks: Ranks, calls: ByNumber, programs: Mapping[int, Program]) -> None:
    reason: str | None = None
    for number in sorted(calls):
        found = calls[number]
        if reason is None and (len(found) < len(ranks) or len({call.describe() for call in found.values()}) > 1):
            reason = _describe_difference(ranks, number, found, programs)
            order.remarks.append(f"{reason}. From there on the recorded results of this group are taken")
        if reason is not None:
            for rank, call in found.items():
                _refuse(order, call.key(rank), reason)


def _refuse(order: Order, key: Key, reason: str) -> None:
    order.refusals[key] = reason
    order.refusals["function", key] = reason


def _describe_difference(
    ranks: Ranks, number: int, found: Mapping[int, Communication], programs: Mapping[int, Program]
) -> str:
    tells_dtype = len({leaf.dtype for call in found.values() for leaf in call.reads}) > 1
    words = {rank: _describe_call(call, tells_dtype=tells_dtype) for rank, call in found.items()}
    calls = "; ".join(f"rank {rank} {words.get(rank) or _describe_end(programs[rank])}" for rank in ranks[:8])
    ended = [rank for rank in ranks if rank not in found and not programs[rank].rank.is_complete]
    if ended:
        return f"the dump of rank {_list(ended)} ends early, and others wait in number {number} of their group: {calls}"
    return f"the ranks {_list(ranks)} do not make the same collectives: as number {number} of their group, {calls}"


def _describe_end(program: Program) -> str:
    """What is said of a rank that does not make a collective."""
    if program.rank.is_complete:
        return "makes none"
    last = next(reversed([operation.name for operation in program.calls()]), None)
    return f"ends after {last}" if last is not None else "has recorded nothing"


def _describe_call(call: Communication, *, tells_dtype: bool) -> str:
    dtypes = f" of {call.reads[0].dtype}" if tells_dtype and call.reads else ""
    sizes = " and ".join(str(list(leaf.shape)) for leaf in call.reads[:2]) + dtypes
    op = f" ({call.op})" if "reduce" in call.kind else ""
    return f"calls {call.operation.name}{op}" + (f" with {sizes}" if sizes else "")


def _describe_absent(absent: list[int], ranks: Ranks, count: int) -> str:
    which = "1 collective" if count == 1 else f"{count} collectives"
    return f"{which} of the ranks {_list(ranks)} keep their recorded results: {describe_absent(absent)}"


def _list(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return ", ".join(map(str, listed[:8])) + (" …" if len(listed) > 8 else "")


def _read(program: Program) -> Iterator[Communication]:
    return (call for call in read_communications(program) if not is_inside_spread(call.operation))


def find_components(programs: Mapping[int, Program]) -> list[list[int]]:
    """The ranks that communicate, directly or through others, belong together."""
    parent = {rank: rank for rank in programs}

    def find(rank: int) -> int:
        while parent[rank] != rank:
            rank = parent[rank]
        return rank

    for rank, program in programs.items():
        for other in _partners(program, rank):
            if other in parent:
                parent[find(other)] = find(rank)
    found: dict[int, list[int]] = defaultdict(list)
    for rank in programs:
        found[find(rank)].append(rank)
    return list(found.values())


def _partners(program: Program, rank: int) -> Iterator[int]:
    for call in read_communications(program):
        yield from call.members(rank) if call.kind in TRANSFERS else call.ranks
    for reduction in read_reductions(program):
        yield from reduction.ranks
    for operation in program.calls():
        for leaf in (*operation.inputs, *operation.outputs):
            yield from leaf.sharding.mesh_ranks if leaf.sharding is not None else ()
