"""While capture itself computes, or inside a call that is being recorded, calls are nobody's business: not recorded."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


class Hiding(threading.local):
    """How deep this thread is in such a place; its own context manager, as it is entered thousands of times a step."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


hiding = Hiding()


def hidden() -> AbstractContextManager[None]:
    return hiding
