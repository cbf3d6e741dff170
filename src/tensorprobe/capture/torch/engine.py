"""The backward engine. `loss.backward()` is a call that the mode's handler runs, and inside a handler the mode is off:
it is entered again around the engine, so that what hooks and Functions do in the backward is noticed.

Nodes of compiled regions run without it: what they call is not the user's.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace, run_all
from tensorprobe.capture.torch.backward_pass import BackwardPasses
from tensorprobe.capture.torch.call_mode import CallMode
from tensorprobe.capture.torch.gradient import GradientTracer
from tensorprobe.capture.torch.mode_stack import is_on_stack, remove_mode
from tensorprobe.capture.torch.node import find_node
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.model.tree import map_tree

_RUN = "_engine_run_backward"
_COMPILED_NODE = "CompiledFunctionBackward"


def patch_engine(mode: CallMode, gradients: GradientTracer, reader: TorchReader, passes: BackwardPasses) -> Undo:
    """Enter the mode around each backward pass. It was so in torch 2.4 to 2.13; where it is not, nothing is patched,
    calls inside backward are not noticed, and no value is trusted there."""
    original = getattr(torch.autograd, _RUN, None)
    if original is None:
        return nothing
    depth = 0
    values = reader.values

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if threading.get_ident() in mode.hidden_threads or _is_autograd_compiled():
            return original(*args, **kwargs)
        depth += 1
        values.is_backward_watched = True
        note = passes.begin(args, kwargs, is_nested=depth > 1)
        try:
            if is_on_stack(mode):
                return note(original(*args, **kwargs))
            with mode:
                return note(original(*args, **kwargs))
        finally:
            depth -= 1
            if not depth:
                values.is_backward_watched = False
                reader.undefined.forget_devices()  # their threads are not seen, and may have written
                gradients.forget_passes()

    undos = [replace(module, _RUN, run_backward) for module in (torch.autograd, torch.autograd.graph)]
    return lambda: run_all(undos)


def hide_from_compiled_nodes(mode: CallMode, outputs: Any, start: int) -> None:
    """Take the mode away while the backward of a compiled region runs, which is compiled, too."""
    pending: list[Any] = []
    map_tree(outputs, "", lambda value, _: pending.append(value), (torch.Tensor,))
    pending = [find_node(value) for value in pending if isinstance(value, torch.Tensor)]
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node in seen or node._sequence_nr() < start:
            continue
        seen.add(node)
        pending.extend(parent for parent, _ in node.next_functions)
        if type(node).__name__ == _COMPILED_NODE:
            _hide(mode, node)


def _hide(mode: CallMode, node: Any) -> None:
    restores: list[Undo] = []

    def before(_: Any) -> None:
        if is_on_stack(mode):
            restores.append(remove_mode(mode))

    def after(*_: Any) -> None:
        if restores:
            restores.pop()()

    node.register_prehook(before)
    node.register_hook(after)


def _is_autograd_compiled() -> bool:
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled_autograd, "compiled_autograd_enabled", False))
