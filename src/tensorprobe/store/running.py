"""Which process is meant by a number: numbers are used again, so the time at which a process began belongs to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.time()


def is_running(pid: int, began: str | None = None) -> bool:
    """Is there such a process on this host? If it is known when it began: and is it still the same?"""
    if os.name == "nt":
        return True  # there os.kill would end the process
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return began is None or read_beginning(pid) in (began, None)


def read_beginning(pid: int) -> str | None:
    """When a process began, in the ticks of its system; None where that is not told."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return status.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def own_beginning_seconds() -> float:
    """When this process began, as `time.time()` tells time; where that is not told, when this file was imported."""
    ticks = read_beginning(os.getpid())
    if ticks is None:
        return _IMPORTED
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_seconds
