"""Several ranks of one step, replayed together in one process."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.replay.board import Board
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.order import check_order
from tensorprobe.replay.schedule import run_together


def run_jointly(replays: Sequence[Replay]) -> None:
    """Execute the programs of these ranks. Where their collectives do not fit together, or others take part that are
    not here, what was recorded is taken; what that was is said in the coverage of each."""
    order = check_order({replay.rank: replay.program for replay in replays})
    board = Board((replay.rank for replay in replays), order.refusals)
    for replay in replays:
        replay.board = board
    remarks = [*order.remarks, *run_together(replays)]
    for replay in replays:
        replay.coverage.ranks = tuple(other.rank for other in replays)
        replay.coverage.remarks += [*remarks, *replay.gradients.describe_missing()]
