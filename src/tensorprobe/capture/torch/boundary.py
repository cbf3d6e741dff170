"""What a mode does not see by itself: autograd Functions, collectives, scripted functions, optimizer steps. One small
patch each.

Each function here installs one patch for the time of a window and returns its undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import Function
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.torch.api_name import COLLECTIVES
from tensorprobe.capture.torch.call_mode import CallRunner

SCRIPTED = "scripted region"
REENTRANT = "backward of the calls inside a reentrant checkpoint"


def patch_functions(runner: CallRunner) -> Undo:
    """Record `MyFunction.apply`, also where it was bound to a name before. torch's own Functions are part of other
    calls."""
    # Function.apply ends in super().apply: a method on the class between it and the C base is found there.
    middle = Function.__mro__[1]
    base_apply = torch._C._FunctionBase.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        original = base_apply.__get__(None, cls)
        if cls.__module__.startswith("torch.") or not runner.is_active:
            if cls.__name__ == "CheckpointFunction" and runner.is_active:
                runner.recorder.coverage.add_unseen(REENTRANT)
            return original(*args, **kwargs)
        return runner.run(runner.names.make("Autograd", cls.__name__), original, args, kwargs, depth=2)

    return _replace(middle, "apply", classmethod(apply))


def patch_collectives(runner: CallRunner) -> Undo:
    """Record the collectives of torch.distributed. They write into tensors that were given to them."""
    if not torch.distributed.is_available():
        return _nothing
    undos = []
    for name in COLLECTIVES:
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            original = getattr(module, name, None)
            if original is not None:
                undos.append(_replace(module, name, _make_collective(runner, name, original)))
    return lambda: _run_all(undos)


def patch_scripted(runner: CallRunner) -> Undo:
    """Record scripted functions and methods at their boundary; what happens inside is counted as unseen."""
    undos = []
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        original = kind.__call__

        def call_scripted(function: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if not runner.is_active:
                return _original(function, *args, **kwargs)
            runner.recorder.coverage.add_unseen(SCRIPTED)
            api = runner.names.make("Jit", _scripted_name(function))
            return runner.run(api, lambda *a, **k: _original(function, *a, **k), args, kwargs)

        undos.append(_replace(kind, "__call__", call_scripted))
    return lambda: _run_all(undos)


def watch_optimizers(doubt: Callable[[], None]) -> Undo:
    """Fused optimizers write to parameters without a new version: after a step no value is known any more."""
    handle = register_optimizer_step_post_hook(lambda *_: doubt())
    return lambda: handle.remove()


def _make_collective(runner: CallRunner, name: str, original: Any) -> Any:
    api = runner.names.make("Distributed", name)

    def collective(*args: Any, **kwargs: Any) -> Any:
        if not runner.is_active:
            return original(*args, **kwargs)
        if not api.is_recorded:
            return runner.run_unrecorded(api, original, args, kwargs)
        return runner.run_in_place(api, original, args, kwargs)

    collective.__name__ = collective.__qualname__ = name
    return collective


def _scripted_name(function: Any) -> str:
    owner = getattr(function, "owner", None)
    if owner is not None:
        return str(owner._type().qualified_name().rsplit(".", 1)[-1])
    return str(function.name)


def _replace(owner: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute; the undo restores what was there, or that nothing was."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, replacement)

    def undo() -> None:
        if vars(owner).get(name, missing) is not replacement:
            return  # somebody has patched over it: theirs stays, and ours passes calls through
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def _run_all(undos: list[Undo]) -> None:
    for undo in reversed(undos):
        undo()


def _nothing() -> None:
    return None
