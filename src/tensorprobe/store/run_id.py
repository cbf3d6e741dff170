"""The id of a run: `20250703-101512-3f9a1c`, the time at which it began and three random bytes. What one process
records after that, into the same dump_path, is a run of its own: `20250703-101512-3f9a1c.2`."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from typing import Any

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}(?:\.\d{1,6})?")
REPLACED = re.compile(rf"replaced_({RUN_ID.pattern}|unknown)(?:_\d+)?")
"""What the folder of a run is called that was moved aside."""


def make_run_id() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"  # the program's random numbers stay as they are


def number_run(base: str, count: int) -> str:
    """The id of the run that a process makes as its so-manieth."""
    return base if count == 1 else f"{base}.{count}"


def base_of(run_id: str) -> str:
    """What the runs of one program have in common."""
    return run_id.partition(".")[0]


def read_run_id(run: Mapping[str, Any]) -> str | None:
    """The id in a run.json; None in one of msprobe's or of an earlier version."""
    found = run.get("run_id")
    return found if isinstance(found, str) and RUN_ID.fullmatch(found) else None


def read_time(run: Mapping[str, Any]) -> datetime.datetime | None:
    """When the step of a run.json began."""
    try:
        found = datetime.datetime.fromisoformat(str(run.get("started")))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
