"""How long the tests may take: the short form is what has to pass, the long one is `scripts/test --long`.

No test measures time: the machine may be busy. What waits for an event gives up only after `PATIENCE_SECONDS`, so that
a hang ends at all; pytest's own `timeout` in pyproject.toml is longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

IS_LONG = os.environ.get("TENSORPROBE_LONG") == "1"

PATIENCE_SECONDS = 900.0


def count_examples(number: int) -> int:
    """How many examples hypothesis tries, of what takes more than the profile says (conftest.py)."""
    return number if IS_LONG else max(number // 4, 15)


def wait_until(has_come: Callable[[], object]) -> None:
    """Until it has come, however long that takes; an error if it never does."""
    latest = time.monotonic() + PATIENCE_SECONDS
    while not has_come():
        if time.monotonic() > latest:
            raise TimeoutError(f"what the test waits for has not come within {PATIENCE_SECONDS} s")
        time.sleep(0.01)
