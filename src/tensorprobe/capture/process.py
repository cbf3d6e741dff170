"""The ways out of a process: its end, SIGTERM and fork. One handler each, for all sessions of the process.

SIGTERM is what a cluster sends before it kills. It is handled only while a step is being recorded, and only where
nobody else handles it; the process then dies of it as it would have, with its dump whole. Children of multiprocessing
that were forked run no exit handlers: there the finalizers of multiprocessing are used.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from tensorprobe.capture.stuck_main import StuckMainThread
from tensorprobe.errors import UsageError


class Recording(Protocol):
    """What a session is to its process."""

    def close(self, ending: str | None = None) -> None:
        """Write everything and let go; `ending` says what ended the program before its time."""

    def abandon(self) -> None:
        """In a forked child: write nothing."""

    @property
    def is_started(self) -> bool:
        """Is a window open?"""

    def defer(self, action: Callable[[], None]) -> bool:
        """Run `action` a little later, if this thread is in the middle of writing."""


logger = logging.getLogger("tensorprobe")

_followed: weakref.WeakSet[Recording] = weakref.WeakSet()
_recording: weakref.WeakSet[Recording] = weakref.WeakSet()
_listeners: list[Callable[[Recording], None]] = []
_is_registered = False
_finalized_pid: int | None = None
_MAX_ENDING_TEXT = 500


def follow(session: Recording) -> None:
    """Close the session when the process ends, and make it inert in forked children."""
    global _is_registered, _finalized_pid
    _followed.add(session)
    for listener in _listeners:
        listener(session)
    if not _is_registered:
        _is_registered = True
        atexit.register(_close_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_abandon_all)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None and _finalized_pid != os.getpid():
        from multiprocessing.util import Finalize

        _finalized_pid = os.getpid()
        Finalize(None, _close_at_exit, exitpriority=0)


def tell_of_sessions(listener: Callable[[Recording], None]) -> None:
    """Call it with every session that is made from now on."""
    _listeners.append(listener)


def refuse_second_window(session: Recording) -> None:
    """Two windows at once would each record what the other does, and could not be taken apart again."""
    if any(other.is_started for other in list(_recording) if other is not session):
        raise UsageError("another capture is recording in this process: stop it before this one starts")


def begin_recording(session: Recording) -> None:
    """From now on SIGTERM makes the dump whole before it ends the process."""
    _recording.add(session)
    if _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle)
        if hasattr(os, "register_at_fork"):  # not on Windows
            _stuck_main.install()


def end_recording(session: Recording) -> None:
    """Nothing of this session is open any more; the handler goes with the last one."""
    _recording.discard(session)
    if not _recording and _is_main_thread() and signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _stuck_main.remove()


def _handle(number: int, frame: FrameType | None) -> None:
    _stuck_main.answer()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    _terminate()


def _terminate() -> None:
    if any(session.defer(_terminate) for session in list(_recording)):
        return
    try:
        _close_all("SIGTERM")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _close_at_exit() -> None:
    error = _uncaught_error()
    _close_all(None if error is None else describe_ending(error))


def _close_all(ending: str | None) -> None:
    for session in list(_followed):
        session.close(ending)


def _uncaught_error() -> BaseException | None:
    """The exception that ends the program, if one does: the one that is on its way through this process, or the one
    that the interpreter has shown. At a prompt that is only the last that was shown, and the program went on."""
    passing = sys.exc_info()[1]
    if passing is not None:
        return None if isinstance(passing, SystemExit) else passing
    if hasattr(sys, "ps1"):
        return None
    shown = getattr(sys, "last_value", None)
    return shown if isinstance(shown, BaseException) else None


def describe_ending(error: BaseException) -> str:
    """An exception that ended a program, in one line or a few."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()[:_MAX_ENDING_TEXT]


def _abandon_all() -> None:
    for session in list(_followed):
        try:
            session.abandon()
        except Exception as error:  # the others are to let go all the same
            logger.error("in a forked process, what belongs to its parent stays: %s", error)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_stuck_main = StuckMainThread(lambda: _close_all("SIGTERM"))
