"""What fixing the randomness of a program and giving it back means in any framework.

Each change is made by a function that returns its undo; a handle keeps the undos of one `seed_all`, one for each thing
changed. Handles may be restored in any order: an undo whose thing a later, living handle has changed again is passed on
to that handle, so that the last one to be restored brings back the state before the first.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType

import numpy as np

from tensorprobe.capture.message import show_messages
from tensorprobe.errors import UsageError

Undo = Callable[[], object]
Changes = Iterator[tuple[str, Undo]]
"""Each thing by its name, changed as the iterator reaches it, with its undo."""

MAX_SEED = 2**32 - 1
"""The largest that numpy and PYTHONHASHSEED take."""

_logger = logging.getLogger("tensorprobe")
_lock = threading.RLock()
_handles: list[weakref.ref[SeedHandle]] = []
"""The handles not yet restored, oldest first; one that nobody holds any more can never be restored, and drops out."""


class SeedHandle:
    """What one `seed_all` changed; `restore()`, or leaving the `with` block, undoes it."""

    def __init__(self) -> None:
        self._undos: dict[str, Undo] = {}

    def restore(self) -> None:
        """Bring back environment, flags, dropout and random states as they were; a second call does nothing."""
        with _lock:
            later = _handles_after(self)
            with ExitStack() as undoing:  # all of them, also when one fails
                for thing, undo in self._undos.items():
                    heir = next((handle for handle in later if thing in handle._undos), None)
                    if heir is None:
                        undoing.callback(undo)
                    else:
                        heir._undos[thing] = undo
                self._undos = {}
                _handles[:] = [reference for reference in _handles if reference() not in (None, self)]

    def __enter__(self) -> SeedHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _apply(self, changes: Changes) -> None:
        """Make the changes one by one and keep their undos; if one fails, undo those before it."""
        try:
            for thing, undo in changes:
                self._undos[thing] = undo
        except BaseException:
            self.restore()
            raise


def apply_changes(changes: Changes) -> SeedHandle:
    """Make the changes; the handle takes them back."""
    with _lock:
        handle = SeedHandle()
        _handles.append(weakref.ref(handle))
        handle._apply(changes)
    return handle


def check_arguments(seed: object, mode: object, rm_dropout: object) -> None:
    """Refuse what `seed_all` does not take, before anything is changed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed_all: seed must be an int, not {seed!r} of type {type(seed).__name__}")
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(
            f"seed_all: seed must be from 0 to {MAX_SEED}, the range that numpy and PYTHONHASHSEED take, not {seed}"
        )
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise UsageError(f"seed_all: {name} must be True or False, not {value!r}")


def seed_python(seed: int) -> Changes:
    """What every framework has beside its own generators: PYTHONHASHSEED, random and numpy."""
    yield "PYTHONHASHSEED", set_environment("PYTHONHASHSEED", str(seed))

    undo: Undo = partial(random.setstate, random.getstate())
    random.seed(seed)
    yield "random", undo

    undo = partial(np.random.set_state, np.random.get_state())
    np.random.seed(seed)
    yield "numpy", undo


def tell_of_dropout() -> None:
    """Without dropout another training runs: nobody gets that without a word."""
    show_messages()
    _logger.warning("seed_all: dropout is off from here on, because rm_dropout is True; rm_dropout=False leaves it on")


def set_environment(name: str, value: str) -> Undo:
    """Set an environment variable."""
    undo = remember_environment(name)
    os.environ[name] = value
    return undo


def remember_environment(name: str) -> Undo:
    """The undo of whatever may happen to an environment variable from now on."""
    before = os.environ.get(name)
    return partial(os.environ.pop, name, None) if before is None else partial(os.environ.__setitem__, name, before)


def _handles_after(handle: SeedHandle) -> list[SeedHandle]:
    living = [found for reference in _handles if (found := reference()) is not None]
    return living[living.index(handle) + 1 :] if handle in living else []
