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
from typing import Any, Literal

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
        self.roots = Roots(self._before_call, watch.is_model)
        self._watch = watch
        self._step_at = step_at
        self._fail = fail
        self._session: LaunchedSession | None = None
        self.before_first: Callable[[], None] = nothing
        """Called before the first window is opened."""
        self.has_begun = False
        """Has a model been called?"""
        self._has_optimizer = False
        self._is_over = False
        """Does the next call of a model begin a new step?"""
        self._is_new = False
        """Is the call on its way for which the window was opened?"""
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
        self._session = None
        for undo in undos:
            undo()

    # -- what the program does -----------------------------------------------------------------------------------------

    def note_optimizer(self) -> None:
        self._has_optimizer = True

    def note_update(self) -> None:
        self._has_optimizer = True
        if self._step_at == "auto":
            self._end_step()

    def note_backward(self) -> None:
        if self._step_at == "backward" or (self._step_at == "auto" and not self._has_optimizer):
            self._end_step()

    def before_root(self, model: Any) -> Callable[[], None]:
        """No window is open, and a model is called."""
        with self._lock:
            try:
                return self._begin_step(model)
            except Exception as error:
                self._fail(error)
                return nothing

    def _before_call(self, model: Any) -> bool:
        """A window is open, and a model is called outermost: does it begin a new step?"""
        if self._session is None or not self._watch.is_model(model):
            return False
        with self._lock:
            if self._is_new or not self._is_over:
                self._is_over = self._is_over or self._ends_with(model)
                self._is_new = False
                return False
            self._session.step()
            self._is_over = False
            self._await_root()
            return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_step(self, model: Any) -> Callable[[], None]:
        session = self._session
        undo, self._undo_root = self._undo_root, nothing
        undo()
        if session is None:
            return nothing
        if not self.has_begun:
            self.has_begun = True
            self.before_first()
        if self._is_over:
            session.step()
        if not session.wants_more:
            self.remove()
            return nothing
        self._is_over = self._ends_with(model)
        if session.wants_step:
            self.roots.adopt(model)
            session.start()
        self._is_new = session.is_started
        is_to_wait = not session.is_started and (self._is_over or not self._watch.sees_all_updates)
        return self._await_root if is_to_wait else nothing

    def _ends_with(self, model: Any) -> bool:
        """Is a step over when a call of this model is?"""
        return self._step_at == "call" or (self._step_at == "auto" and self._watch.makes_update(model))

    def _end_step(self) -> None:
        if self._session is None or not self.has_begun or self._is_over:
            return
        self._is_over = True
        if not self._session.is_started and self._watch.sees_all_updates:
            self._await_root()

    def _await_root(self) -> None:
        with self._lock:
            self._undo_root()
            self._undo_root = self._watch.await_root(self)
