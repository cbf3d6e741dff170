"""Work that a signal must not break off: half a record in a file, records taken from the queue and not yet written."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Deferral:
    """A re-entrant lock. What a signal handler asks for while its own thread is inside runs when the thread leaves."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        waiting: Callable[[], None] | None = None
        self._depth -= 1
        if not self._depth:
            self._owner = None
            waiting, self._waiting = self._waiting, None
        self._lock.release()
        if waiting is not None:
            waiting()

    def defer(self, action: Callable[[], None]) -> bool:
        """Run `action` when this thread leaves; False if it is not inside, and the caller may act at once."""
        if self._owner != threading.get_ident():
            return False
        self._waiting = action
        return True
