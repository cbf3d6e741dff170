"""Python's stack ends at `sys.getrecursionlimit()`, and capture stands on it too. Near its end capture stands aside: a
call runs as it would without it, is counted, and finds as much room as it would find then.

The frames that capture has on the stack are given back by a higher limit, only as long as the stack is nearly used up.
A program that recurses for ever still ends in a RecursionError. Before Python 3.12 calls from C count like frames, so
that a number of frames says too little: there it is tried whether a few more go.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from tensorprobe.capture.stack import OWN_FOLDER

if TYPE_CHECKING:
    from tensorprobe.capture.recorder import Recorder

NEARLY_FULL = "call where Python's stack was nearly used up"
_NEEDED = 150
"""So many frames are free where a call is recorded."""
_RESERVE = 40
"""What a call needs that is only counted."""
_COUNTS_C_CALLS = sys.version_info < (3, 12)

logger = logging.getLogger("tensorprobe")


class StackRoom:
    """What is left of the stack of a thread. The limit belongs to the process, so there is one of these."""

    def __init__(self) -> None:
        self.stand_ins: set[CodeType] = set()
        """Functions of capture that run in the place of one of the framework's: without them there were as many."""
        self._lock = threading.RLock()
        self._aside = Aside()
        self._extra: dict[int, int] = {}
        """By thread, how much higher than the program's the limit has to be."""
        self._limit = 0
        """The program's, while that is higher."""
        self._raised = 0

    @property
    def limit(self) -> int:
        """The program's own."""
        limit = sys.getrecursionlimit()
        return self._limit if self._extra and limit == self._raised else limit  # it may have set another meanwhile

    def is_short(self) -> bool:
        """Is the stack nearly used up, or does this thread stand aside already?"""
        if self._aside.depth:
            return True
        limit = self.limit
        most_frames = limit - _NEEDED
        try:
            sys._getframe(max(0, most_frames // 2 if _COUNTS_C_CALLS else most_frames))
        except ValueError:  # there are fewer frames
            if self._extra:
                self.give_back()
            return False
        return not _COUNTS_C_CALLS or not _has_room(_NEEDED + sys.getrecursionlimit() - limit)

    def widen(self) -> None:
        """Make room for what capture has on the stack of this thread, until `give_back`, or until `is_short` finds that
        the stack is not deep any more. There is an end to it: a program that recurses for ever must come to the limit,
        not to the end of the memory."""
        counts = self._count_own_frames() * (2 if _COUNTS_C_CALLS else 1)
        self._set_extra(min(counts + _RESERVE, self.limit))

    def give_back(self) -> None:
        self._set_extra(0)

    @contextmanager
    def widened(self) -> Iterator[None]:
        """The same for one call, in which this thread stands aside."""
        before = self._extra.get(threading.get_ident(), 0)
        self.widen()
        self._aside.depth += 1
        try:
            yield
        finally:
            self._aside.depth -= 1
            self._set_extra(before)

    def _set_extra(self, extra: int) -> None:
        thread = threading.get_ident()
        with self._lock:
            if not extra and not self._extra:
                return
            limit, wanted = self.limit, {**self._extra, thread: extra}
            raised = limit + max(wanted.values())
            try:
                sys.setrecursionlimit(raised)
            except RecursionError:  # the stack is too deep to go back by now: a later call does
                return
            self._limit, self._raised = limit, raised
            self._extra = {each: number for each, number in wanted.items() if number}

    def _count_own_frames(self) -> int:
        count = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            count += code.co_filename.startswith(OWN_FOLDER) and code not in self.stand_ins
            frame = frame.f_back
        return count


class Aside(threading.local):
    """How many calls this thread is inside for which capture stands aside."""

    depth = 0


room = StackRoom()
_told: weakref.WeakSet[Recorder] = weakref.WeakSet()


def note_full_stack(recorder: Recorder) -> None:
    """A call is not recorded for want of room: it is counted, and said once for each debugger."""
    recorder.coverage.add_unseen(NEARLY_FULL)
    if recorder not in _told:
        _told.add(recorder)
        logger.warning(
            "Python's stack is nearly used up (sys.getrecursionlimit() is %d): calls nested this deeply run and are "
            "counted, but not recorded. Call sys.setrecursionlimit with a larger number to have them recorded",
            room.limit,
        )


def _has_room(depth: int) -> bool:
    try:
        _descend(depth)
    except RecursionError:
        return False
    return True


def _descend(depth: int) -> None:
    if depth:
        _descend(depth - 1)
