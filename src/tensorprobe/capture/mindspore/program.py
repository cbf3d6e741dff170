"""What a program of MindSpore does, as far as it takes to find its steps. Nothing is computed, and no cell, optimizer
or tensor of the program is held.

Optimizers are cells, and a training cell calls them itself, maybe inside a graph, where nobody sees the call: a model
that has an optimizer in it makes an update each time it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from mindspore import nn

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.executor import executor
from tensorprobe.capture.patch import replace
from tensorprobe.capture.program import ProgramListener

try:
    from mindspore.experimental.optim.optimizer import Optimizer as _NewOptimizer
except ImportError:  # not in all versions
    _NewOptimizer = nn.Optimizer

_OPTIMIZERS = tuple(dict.fromkeys((nn.Optimizer, _NewOptimizer)))


class _Updating(threading.local):
    """Is this thread inside of an optimizer? The cells that it calls are no models."""

    depth = 0


_updating = _Updating()


class MindSporeProgram:
    """Sees optimizers, backward passes, and the calls of models between two windows."""

    sees_all_updates = False

    def is_model(self, cell: Any) -> bool:
        return not _updating.depth and not isinstance(cell, _OPTIMIZERS)

    def makes_update(self, model: Any) -> bool:
        pending, seen = [model], set()
        while pending:
            cell = pending.pop()
            if isinstance(cell, _OPTIMIZERS):
                return True
            if id(cell) not in seen:
                seen.add(id(cell))
                pending += [child for child in cell._cells.values() if child is not None]
        return False

    def follow_steps(self, listener: ProgramListener) -> Undo:
        with ExitStack() as undos:
            for kind in _OPTIMIZERS:
                undos.callback(_watch_optimizers(kind, listener))
            undos.callback(_watch_backward(listener.note_backward))
            return undos.pop_all().close

    def await_root(self, listener: ProgramListener) -> Undo:
        original = nn.Cell.__call__

        def call_root(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_model(cell):
                return original(cell, *args, **kwargs)
            after = listener.before_root(cell)
            if nn.Cell.__call__ is call_root:  # somebody else is in the middle of it
                return original(cell, *args, **kwargs)
            try:
                return nn.Cell.__call__(cell, *args, **kwargs)
            finally:
                after()

        return replace(nn.Cell, "__call__", call_root)


def _watch_optimizers(kind: Any, listener: ProgramListener) -> Undo:
    original = kind.__init__

    @wraps(original)
    def make_optimizer(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        listener.note_optimizer()

    def call_optimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _updating.depth += 1
        try:
            return nn.Cell.__call__(optimizer, *args, **kwargs)
        finally:
            _updating.depth -= 1
            listener.note_update()

    undos = [replace(kind, "__init__", make_optimizer), replace(kind, "__call__", call_optimizer)]

    def undo() -> None:
        for take_back in undos:
            take_back()

    return undo


def _watch_backward(tell: Callable[[], None]) -> Undo:
    original = type(executor).grad

    @wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            tell()

    return replace(type(executor), "grad", grad)
