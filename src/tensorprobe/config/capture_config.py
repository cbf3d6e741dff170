"""What one capture session records, and where it writes. Frozen; made by `load_config`, which checks every field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensorprobe.config.flight_recorder import FlightRecorderOptions
from tensorprobe.config.number_range import Numbers

Task = Literal["statistics", "tensor", "structure", "replay"]
Level = Literal["L0", "L1", "mix", "debug", "api_dump"]
SummaryMode = Literal["statistics", "md5", "hash"]
OnNonfinite = Literal["stop", "tensors"]
Compiled = Literal["boundary", "eager"]

TASKS: tuple[Task, ...] = ("statistics", "tensor", "structure", "replay")
LEVELS: tuple[Level, ...] = ("L0", "L1", "mix", "debug")
"""Those that a configuration may ask for; `api_dump` has a face of its own."""
SUMMARY_MODES: tuple[SummaryMode, ...] = ("statistics", "md5", "hash")
NONFINITE_ACTIONS: tuple[OnNonfinite, ...] = ("stop", "tensors")
COMPILED_MODES: tuple[Compiled, ...] = ("boundary", "eager")
DATA_MODES = ("all", "forward", "backward", "input", "output")


@dataclass(frozen=True)
class CaptureConfig:
    """The options of one session; an empty collection is no filter."""

    task: Task = "statistics"
    dump_path: Path = Path("./dump_path")
    level: Level = "L1"
    rank: Numbers = frozenset()
    step: Numbers = frozenset()
    async_dump: bool = False
    extra_info: bool = True
    """False: no stack.json and no construct.json."""
    scope: tuple[str, ...] = ()
    """Empty, or exactly two record names: the first and the last call to record."""
    list: tuple[str, ...] = ()
    """Parts of record names; a call is recorded if its name, or that of a module around it, contains one."""
    data_mode: frozenset[str] = frozenset()
    """Any of forward, backward, input, output; "all" is the empty set."""
    summary_mode: SummaryMode = "statistics"
    tensor_list: tuple[str, ...] = ()
    """Parts of record names whose tensors are stored although the task is statistics."""
    api_yaml: Path | None = None
    on_nonfinite: OnNonfinite | None = None
    """What to do at the first NaN or Inf, besides storing the tensors of that call; None: nothing."""

    max_disk: int | None = None
    """How many bytes one process may write; None: as many as `min_free` allows."""
    min_free: int | None = None
    """How many bytes stay free on the disk of the dump_path; None: 1 GB, or 2 % of a small disk; 0: the disk is not
    looked at."""
    flight_recorder: FlightRecorderOptions | None = None
    """Only the last steps stay, until something happens; None: all do."""
    tensorboard: Path | None = None
    """Where norms per module go as scalars."""
    compiled: Compiled = "boundary"
    """How functions of torch.compile are recorded: as one call each, or as they were written, run eagerly."""

    @property
    def stores_any_tensor(self) -> bool:
        """May there be tensor files?"""
        return self.task in ("tensor", "replay") or bool(self.tensor_list) or self.on_nonfinite is not None
