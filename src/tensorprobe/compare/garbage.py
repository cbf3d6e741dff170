"""Python's search for cycles, put off while many small objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_left_alone() -> Iterator[None]:
    """Without it, Python would look through both runs again and again: a quarter of the time of a comparison. What was
    made meanwhile counts as old afterwards: it stays, and would be looked through once more as if it were new."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what the program froze itself stays frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def collect_garbage() -> None:
    """What refers to itself, of what was made since the last time: few objects, where most were put away."""
    gc.collect(1)
