"""What a training left on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records_of(step: int, folder: str = "dump", rank: str = "rank") -> dict[str, Any]:
    """The records of a step, by their names."""
    data: dict[str, Any] = json.loads((Path(folder) / f"step{step}/{rank}/dump.json").read_text())["data"]
    return data


def run_of(step: int, folder: str = "dump") -> dict[str, Any]:
    """What run.json says of a step."""
    run: dict[str, Any] = json.loads((Path(folder) / f"step{step}/rank/run.json").read_text())
    return run


def count_calls(step: int, module: str, folder: str = "dump", rank: str = "rank") -> tuple[int, int]:
    """How many forward and backward calls of a module a step has; `module` is its path and class: `fc.Linear`."""
    names = records_of(step, folder, rank)
    forward, backward = (
        sum(name.startswith(f"Module.{module}.{direction}.") for name in names) for direction in ("forward", "backward")
    )
    return forward, backward
