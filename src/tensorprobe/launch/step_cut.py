"""Where the steps of a program begin and end.

A step begins when a model is called outermost, and is over when the program has asked an optimizer for an update; in a
program without an optimizer, when an outermost backward pass is over. It is closed when the next one begins, so that a
second optimizer, and whatever else comes after the update, still belongs to it.

    await a model  ──call──>  window open  ──update──>  over  ──call──>  the next step: await a model
                              or filtered: nothing is installed but what tells of updates
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.program import ProgramWatch
from tensorprobe.capture.root import Roots
from tensorprobe.launch.session import LaunchedSession

StepAt = Literal["auto", "backward", "call"]
STEP_ATS: tuple[StepAt, ...] = ("auto", "backward", "call")


class StepCut:
    """Opens a window for each step that is to be recorded, and closes it."""

    def __init__(self, watch: ProgramWatch, step_at: StepAt, fail: Callable[[Exception], None]) -> None:
        self.roots = Roots(self._before_call)
        self._watch = watch
        self._step_at = step_at
        self._fail = fail
        self._session: LaunchedSession | None = None
        self.before_first: Callable[[], None] = nothing
        """Called before the first window is opened."""
        self.has_begun = False
        """Has a model been called?"""
        self.update_count = 0
        self._has_optimizer = False
        self._is_over = False
        self._lock = threading.RLock()
        self._undo_watch: Undo = nothing
        self._undo_root: Undo = nothing

    def install(self, session: LaunchedSession) -> None:
        """Wait for the first model."""
        self._session = session
        self._undo_watch = self._watch.follow_steps(self)
        self._undo_root = self._watch.await_root(self)

    def remove(self) -> None:
        """Take back whatever is installed; the session is left to its owner."""
        undos = self._undo_root, self._undo_watch
        self._undo_root = self._undo_watch = nothing
        self._is_over = False
        for undo in undos:
            undo()

    # -- what the program does -----------------------------------------------------------------------------------------

    def note_optimizer(self) -> None:
        self._has_optimizer = True

    def note_update(self) -> None:
        self._has_optimizer = True
        self.update_count += 1
        if self._step_at == "auto":
            self._end_step()

    def note_backward(self) -> None:
        if self._step_at == "backward" or (self._step_at == "auto" and not self._has_optimizer):
            self._end_step()

    def before_root(self) -> Callable[[], None]:
        """No window is open, and a model is called."""
        with self._lock:
            try:
                return self._begin_step()
            except Exception as error:
                self._fail(error)
                return nothing

    def _before_call(self) -> bool:
        """A window is open, and a model is called outermost: does it begin a new step?"""
        if not self._is_over or self._session is None:
            return False
        with self._lock:
            self._undo_root()
            self._session.step()
            self._is_over = False
            self._undo_root = self._watch.await_root(self)
            return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> Callable[[], None]:
        session = self._session
        undo, self._undo_root = self._undo_root, nothing
        undo()
        if session is None:
            return nothing
        if not self.has_begun:
            self.has_begun = True
            self.before_first()
        if self._is_over:
            self._is_over = False
            session.step()
        if not session.wants_more:
            self.remove()
            return nothing
        if session.wants_step:
            session.start()
        self._is_over = self._step_at == "call"
        return nothing if session.is_started or not self._is_over else self._await_root

    def _end_step(self) -> None:
        if self._session is None or not self.has_begun or self._is_over:
            return
        self._is_over = True
        if not self._session.is_started:
            self._await_root()

    def _await_root(self) -> None:
        with self._lock:
            self._undo_root()
            self._undo_root = self._watch.await_root(self)
