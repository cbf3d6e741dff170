"""What a program that does not know of us does, as far as it takes to find its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tensorprobe.capture.framework import Undo


class ProgramListener(Protocol):
    """Whoever cuts the steps."""

    def note_optimizer(self) -> None:
        """The program has made an optimizer."""

    def note_update(self) -> None:
        """It has asked an optimizer for an update of the weights, whether or not the optimizer made one."""

    def note_backward(self) -> None:
        """An outermost backward pass is over."""

    def before_root(self, model: Any) -> Callable[[], None]:
        """A model is called outermost, while no window is open. What is returned is called when it has returned."""


class ProgramWatch(Protocol):
    """One framework's part: `capture/torch/program.py` and `capture/mindspore/program.py`."""

    sees_all_updates: bool
    """False where a model may update its own weights, unseen: then every model that is called must be looked at."""

    def is_model(self, module: Any) -> bool:
        """Is what is called outermost a model of the program?"""

    def makes_update(self, model: Any) -> bool:
        """Does a call of this model update its own weights?"""

    def follow_steps(self, listener: ProgramListener) -> Undo:
        """Tell of optimizers and backward passes, from now on."""

    def await_root(self, listener: ProgramListener) -> Undo:
        """Tell of models that are called, until it is undone."""
