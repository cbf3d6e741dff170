"""What comes out of a collective, as a function of what all its ranks put in. Written in operations that can be
differentiated: the gradient of what one rank gets reaches all that gave to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tensorprobe.replay.communication import Communication
from tensorprobe.replay.invocation import NotReplayedError
from tensorprobe.run.leaf import Leaf

Tensors = Sequence[torch.Tensor]
Results = list[torch.Tensor] | None
"""One tensor for each target; None where what a rank gets means nothing."""

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.mean(0),
    # what is chosen has no gradient here: programs take it to keep numbers in range, where it cancels
    "max": lambda stacked: stacked.detach().amax(0),
    "min": lambda stacked: stacked.detach().amin(0),
    "product": lambda stacked: stacked.detach().prod(0),
}


def exchange(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    """For each rank, in the order of the group, what it gets. `given`: what each has put in."""
    kind = calls[0].kind
    if kind in ("send", "recv"):
        return [[], [*given[0]]]
    if kind == "barrier":
        return [[] for _ in calls]
    return _EXCHANGES[kind](calls, given)


def reduce(op: str, tensors: Tensors) -> torch.Tensor:
    """Several tensors of one shape into one."""
    if op not in _REDUCTIONS:
        raise NotReplayedError(f"the reduction {op!r} is not known here")
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise NotReplayedError(f"the ranks reduce tensors of different shapes: {sorted(shapes)}")
    return _REDUCTIONS[op](torch.stack(list(tensors)))


def _all_reduce(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    return [[reduce(calls[0].op, tensors) for tensors in zip(*given, strict=True)] for _ in calls]


def _reduce(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    results = _all_reduce(calls, given)
    return [results[place] if rank == calls[0].root else None for place, rank in enumerate(calls[0].ranks)]


def _broadcast(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    sent = given[_root(calls)]
    return [[tensor.clone() for tensor in sent] for _ in calls]


def _all_gather(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    everything = _lay_side_by_side(given)
    return [fit(everything, call.targets) for call in calls]


def _gather(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    root, everything = _root(calls), _lay_side_by_side(given)
    return [fit(everything, call.targets) if place == root else [] for place, call in enumerate(calls)]


def _scatter(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    pieces = given[_root(calls)]
    return [fit(piece.reshape(-1), call.targets) for call, piece in zip(calls, pieces, strict=True)]


def _reduce_scatter(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    pieces = [_cut(call, tensors, len(calls), ()) for call, tensors in zip(calls, given, strict=True)]
    return [fit(reduce(call.op, [own[place] for own in pieces]), call.targets) for place, call in enumerate(calls)]


def _all_to_all(calls: Sequence[Communication], given: Sequence[Tensors]) -> list[Results]:
    pieces = [_cut(call, tensors, len(calls), call.input_splits) for call, tensors in zip(calls, given, strict=True)]
    return [fit(torch.cat([own[place] for own in pieces]), call.targets) for place, call in enumerate(calls)]


_EXCHANGES: dict[str, Callable[[Sequence[Communication], Sequence[Tensors]], list[Results]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _root(calls: Sequence[Communication]) -> int:
    root = calls[0].root
    if root not in calls[0].ranks:
        raise NotReplayedError(f"rank {root}, which sends or receives all, is not in the group")
    return calls[0].ranks.index(root)


def _lay_side_by_side(given: Sequence[Tensors]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensors in given for tensor in tensors])


def _cut(call: Communication, tensors: Tensors, count: int, splits: Sequence[int]) -> list[torch.Tensor]:
    """What a rank puts in, in pieces, one for each rank; flat."""
    if call.is_split[0]:
        pieces = [tensor.reshape(-1) for tensor in tensors]
    elif splits:
        pieces = [piece.reshape(-1) for piece in tensors[0].split(list(splits))]
    else:
        pieces = list(tensors[0].reshape(count, -1))
    if len(pieces) != count:
        raise NotReplayedError(f"{len(pieces)} pieces for {count} ranks")
    return pieces


def fit(flat: torch.Tensor, targets: Sequence[Leaf]) -> list[torch.Tensor]:
    """Cut into tensors of the shapes that were recorded."""
    sizes = [leaf.element_count for leaf in targets]
    if sum(sizes) != flat.numel():
        raise NotReplayedError(f"the ranks give {flat.numel()} elements where {sum(sizes)} were recorded")
    return [piece.reshape(leaf.shape) for piece, leaf in zip(flat.split(sizes), targets, strict=True)]
