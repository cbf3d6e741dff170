"""Parameters that are put together from ranks before they are used, and whose gradients are averaged over the same
ranks and cut again afterwards: FSDP2. Records of modules say so by themselves; without them, the collectives do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorprobe.replay.communication import Communication, read_communications
from tensorprobe.replay.program import Operation, Program

Ranks = tuple[int, ...]


def find_gathered(program: Program) -> dict[str, Ranks]:
    """Over which ranks the gradient of each such parameter is averaged, by its name. Nothing where a further collective
    may add to them, or the program writes to one of them later: whose it is, calls alone do not say."""
    collectives = {one.operation.name: one for one in read_communications(program) if one.operation.call.caller}
    averages = [one for one in collectives.values() if one.kind == "reduce_scatter" and one.op == "avg"]
    averaged = {one.ranks for one in averages}
    makers = {operation.name: operation for operation in program.calls()}
    stored = {leaf.storage for one in averages for leaf in one.results} - {None}
    is_changed = any(
        one.writes_in_place and not one.call.caller and any(leaf.storage in stored for leaf in one.outputs)
        for one in makers.values()
    )
    if is_changed or any(one.kind == "all_reduce" for one in collectives.values()):
        return {}
    found = {}
    for operation in makers.values():
        for leaf in operation.inputs:
            if leaf.parameter is not None and leaf.starts_graph and leaf.source in makers:
                groups = set(_iter_groups(makers[leaf.source], makers, collectives))
                if len(groups) == 1 and groups <= averaged:
                    found[leaf.parameter] = groups.pop()
    return found


def _iter_groups(
    maker: Operation, makers: Mapping[str, Operation], collectives: Mapping[str, Communication]
) -> Iterator[Ranks]:
    """The groups that gather what a call of the framework returns, through other such calls."""
    seen, waiting = {maker.name}, [maker]
    while waiting:
        one = waiting.pop()
        if one.name in collectives:
            if collectives[one.name].kind == "all_gather":
                yield collectives[one.name].ranks
            continue
        sources = {leaf.source for leaf in one.inputs if leaf.source in makers and leaf.source not in seen}
        seen.update(name for name in sources if name is not None)
        waiting += [makers[name] for name in sources if name is not None and makers[name].call.caller is not None]
