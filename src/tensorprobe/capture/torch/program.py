"""What a program of PyTorch does, as far as it takes to find its steps. Nothing is computed, and no module, optimizer
or tensor of the program is held.

torch.compile traces what is put in the place of its functions: each of these hands on at once while it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
import torch.utils.data
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace
from tensorprobe.capture.program import ProgramListener
from tensorprobe.capture.torch.call_mode import is_traced
from tensorprobe.capture.torch.engine_watch import watch_engine
from tensorprobe.capture.torch.kept_call import mark_direct


class TorchProgram:
    """Sees optimizers, backward passes, and the calls of models between two windows."""

    sees_all_updates = True

    def is_model(self, module: Any) -> bool:
        return True

    def makes_update(self, model: Any) -> bool:
        return False

    def follow_steps(self, listener: ProgramListener) -> Undo:
        def after_step(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                listener.note_update()

        handle = register_optimizer_step_post_hook(after_step)
        with ExitStack() as undos:
            undos.callback(handle.remove)
            undos.callback(_watch_optimizers(listener.note_optimizer))
            undos.callback(_watch_scaler(listener.note_update))
            undos.callback(watch_engine(lambda args, kwargs: listener.note_backward()))
            return undos.pop_all().close

    def await_root(self, listener: ProgramListener) -> Undo:
        original = torch.nn.Module.__call__
        is_awaited = True
        hand_on = KeptCall()

        def call_root(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or is_traced() or torch.utils.data.get_worker_info() is not None:
                return original(module, *args, **kwargs)
            if not is_awaited:
                return hand_on(original, module, *args, **kwargs)
            after = listener.before_root(module)
            if torch.nn.Module.__call__ is call_root:  # somebody else is in the middle of it
                return original(module, *args, **kwargs)
            try:
                return torch.nn.Module.__call__(module, *args, **kwargs)
            finally:
                after()

        mark_direct(call_root, original)
        undo = replace(torch.nn.Module, "__call__", call_root)

        def stop_waiting() -> None:
            nonlocal is_awaited
            is_awaited = False
            undo()

        return stop_waiting


class KeptCall:
    """A call of modules that was replaced for a time, and that somebody has kept: `forward = model.__call__`, as
    generate() of transformers does, or a class with `__call__ = Module.__call__`. It is handed on to what is there now.
    """

    def __init__(self) -> None:
        self._under_way: set[tuple[int, int]] = set()

    def __call__(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        key = threading.get_ident(), id(module)
        if key in self._under_way:  # what is there now has been put around the kept one, and calls it
            return original(module, *args, **kwargs)
        self._under_way.add(key)
        try:
            return torch.nn.Module.__call__(module, *args, **kwargs)
        finally:
            self._under_way.discard(key)


def _watch_optimizers(tell: Callable[[], None]) -> Undo:
    original = Optimizer.__init__

    @wraps(original)
    def make_optimizer(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        tell()

    return replace(Optimizer, "__init__", make_optimizer)


def _watch_scaler(tell: Callable[[], None]) -> Undo:
    """A scaler that finds Inf or NaN does not call the optimizer: the program has asked for an update all the same."""
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is None:
        return nothing
    original = scaler.step

    @wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell()
        return result

    return replace(scaler, "step", step)
