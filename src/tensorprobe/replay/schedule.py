"""Drives the ranks of a replay in one process: each goes on until it must wait for others; then the next one does.

A backward pass is run when no rank can go on, for all ranks that stand at one, at once: their graphs hang together
where gradients go from rank to rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tensorprobe.replay.backward_request import BackwardRequest, run_passes
from tensorprobe.replay.board import Board, Standing, Steps


class Player(Protocol):
    """One rank."""

    rank: int
    board: Board

    def steps(self) -> Steps:
        """Executes its program, and stops wherever it must wait."""


def run_together(players: Sequence[Player]) -> list[str]:
    """Execute the programs of all ranks, which share one board; what they could not do together, in words."""
    running = {player.rank: player.steps() for player in players}
    standing: dict[int, Standing] = {}
    remarks: list[str] = []
    while running:
        has_moved = False
        for rank in list(running):
            if rank in standing and not standing[rank].is_open:
                continue
            has_moved = True
            try:
                standing[rank] = next(running[rank])
            except StopIteration:
                del running[rank]
                standing.pop(rank, None)
        if not has_moved:
            requests = [place for place in standing.values() if isinstance(place, BackwardRequest)]
            if requests:
                run_passes(requests)
            else:
                remarks.append(describe_deadlock(standing))
                players[0].board.close(remarks[-1])
    return remarks


def describe_deadlock(standing: Mapping[int, Standing]) -> str:
    """Where each rank waits."""
    places = "; ".join(f"rank {rank} in {place.place}" for rank, place in sorted(standing.items()))
    return f"the ranks wait for each other: {places}. From there on recorded results are taken for those of collectives"
