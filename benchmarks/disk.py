"""The disk, beside a captured step: as many bytes by dd, into the same folder."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 20


@dataclass(frozen=True)
class DiskTurn:
    """The seconds in which the same number of bytes was written: by a captured step, and by dd."""

    size_bytes: int
    plain: float
    """The same step, without a capture."""
    captured: float
    dd: float

    @property
    def ratio(self) -> float:
        """How fast the step writes, of what dd does."""
        return self.dd / self.captured

    @property
    def added_ratio(self) -> float:
        """The same, where only the time counts that the capture adds to the step."""
        return self.dd / self.added

    @property
    def added(self) -> float:
        return max(self.captured - self.plain, 1e-9)


def write_zeros(folder: Path, size_bytes: int, *flags: str) -> float:
    """The seconds that dd takes; it begins when nobody's writing is left over."""
    os.sync()
    file, blocks = folder / "zeros", -(-size_bytes // _BLOCK)
    command = ["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={blocks}", *flags]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    file.unlink()
    return seconds * size_bytes / (blocks * _BLOCK)


def format_turns(what: str, turns: list[DiskTurn]) -> str:
    """Medians over the turns."""

    def rate(name: str) -> str:
        return f"{statistics.median(turn.size_bytes / getattr(turn, name) for turn in turns) / 1e6:,.0f} MB/s"

    def share(name: str) -> str:
        return f"{statistics.median(getattr(turn, name) for turn in turns):.0%}"

    return (
        f"{turns[-1].size_bytes / 1e6:,.0f} MB, {what}: dd {rate('dd')}; the captured step {rate('captured')}, "
        f"{share('ratio')} of it; what it adds to a plain step {rate('added')}, {share('added_ratio')}"
    )
