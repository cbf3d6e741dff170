"""What a mode does not see by itself: autograd Functions, scripted functions, optimizer steps. One small patch each;
collectives have a file of their own.

Each function here installs one patch for the time of a window and returns its undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import Function
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import replace, run_all
from tensorprobe.capture.recursion import room
from tensorprobe.capture.torch.call_mode import CallRunner
from tensorprobe.capture.torch.checkpoint import Checkpoints

SCRIPTED = "scripted region"
# torch's own Functions are part of other calls, except: the one of checkpointing, which only stands around the calls
# inside it; a callable made of CUDA graphs; and those that move tensors between ranks, or make distributed ones.
_PREFIXES_OF_TORCH = {"CheckpointFunction": "", "Graphed": "Jit"}
_BETWEEN_RANKS = ("torch.distributed.tensor.", "torch.distributed.nn.")


def patch_functions(runner: CallRunner, checkpoints: Checkpoints) -> Undo:
    """Record `MyFunction.apply`, also where it was bound to a name before."""
    # Function.apply ends in super().apply: a method on the class between it and the C base is found there.
    middle = Function.__mro__[1]
    base_apply = torch._C._FunctionBase.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        original = base_apply.__get__(None, cls)
        is_of_torch = cls.__module__.startswith("torch.")
        is_recorded = not is_of_torch or cls.__module__.startswith(_BETWEEN_RANKS)
        prefix = "Autograd" if is_recorded else _PREFIXES_OF_TORCH.get(cls.__name__)
        if runner.is_active and room.is_short():
            return runner.call_aside(original, args, kwargs)
        if not runner.is_active or prefix is None:
            return original(*args, **kwargs)
        if not prefix or not runner.records_apis:
            return checkpoints.watch_function(lambda: original(*args, **kwargs))
        api = runner.names.make(prefix, cls.__name__)
        return checkpoints.watch_function(lambda: runner.run(api, original, args, kwargs, depth=4))

    return replace(middle, "apply", classmethod(apply))


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

        undos.append(replace(kind, "__call__", call_scripted))
    return lambda: run_all(undos)


def watch_optimizers(doubt: Callable[[], None]) -> Undo:
    """Fused optimizers write to parameters without a new version: after a step no value is known any more."""
    handle = register_optimizer_step_post_hook(lambda *_: doubt())
    return lambda: handle.remove()


def _scripted_name(function: Any) -> str:
    owner = getattr(function, "owner", None)
    if owner is not None:
        return str(owner._type().qualified_name().rsplit(".", 1)[-1])
    return str(function.name)
