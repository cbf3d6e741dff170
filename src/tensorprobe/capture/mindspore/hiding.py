"""While capture itself computes, or inside a call that is being recorded, calls are nobody's business: not recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Hiding(threading.local):
    """How deep this thread is in such a place."""

    depth = 0


hiding = Hiding()


@contextmanager
def hidden() -> Iterator[None]:
    hiding.depth += 1
    try:
        yield
    finally:
        hiding.depth -= 1
