"""The stacks of both sides of each pair of calls, each distinct stack once.

Those of calls that are clean are left out: there are many, nobody follows them, and `tensorprobe serve` has them.
"""

from __future__ import annotations

from typing import Any

from tensorprobe.report.page.call_table import CallTable
from tensorprobe.report.page.column import NOTHING, Strings
from tensorprobe.report.page.recorded import SIDES, Recorded
from tensorprobe.store.frame import describe_frame


def build_stacks(table: CallTable, recorded: Recorded, strings: Strings) -> tuple[dict[str, Any], list[list[int]]]:
    """Columns of the calls with the number of their stack on each side, and the stacks, as numbers of texts. No column
    where no stack is known."""
    numbers: dict[tuple[str, ...], int] = {}
    columns = {f"stack_{side}": _number_stacks(table, recorded, side, numbers) for side in SIDES}
    stacks = [strings.add_all(map(describe_frame, frames)) for frames in numbers]
    return (columns, stacks) if stacks else ({}, [])


def _number_stacks(table: CallTable, recorded: Recorded, side: str, numbers: dict[tuple[str, ...], int]) -> list[int]:
    found = []
    for place, pair in table.entries:
        calls = pair.reference if side == SIDES[0] else pair.candidate
        frames = () if pair.role == "clean" else recorded.find_stack(side, place, calls[-1].name)
        found.append(numbers.setdefault(frames, len(numbers)) if frames else NOTHING)
    return found
