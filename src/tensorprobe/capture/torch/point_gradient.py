"""The gradient of a tensor at one point of the program: the whole of it, summed over all who use the tensor.

The hook of a tensor that was computed sits on the autograd node that made it, so that nothing is left on the user's
object and a later in-place change does not matter. A leaf has its hook until the gradient has come or the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.tensor_hook import hook_gradient


def watch_gradient(
    recorder: Recorder,
    gradients: GradientTracer,
    tensors: Sequence[torch.Tensor],
    receive: Callable[[int, Any], None],
    finish: Callable[[], None],
) -> Undo | None:
    """Call `receive(index, gradient)` for each, and `finish` after the last."""
    watched = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.requires_grad]
    if not watched:
        return None
    generation = recorder.generation
    waiting = {index for index, _ in watched}
    undos: list[Undo] = []

    def take(index: int, gradient: torch.Tensor | None) -> None:
        if recorder.generation != generation or index not in waiting:
            return
        try:
            gradients.note_backward_pass()
            waiting.discard(index)
            if gradient is not None:
                with hidden():
                    receive(index, gradient)
            if not waiting:
                finish()
        except Exception as error:
            recorder.note_failure("the gradient of a saved variable", error)

    with hidden():
        undos += [hook_gradient(tensor, partial(take, index)) for index, tensor in watched]

    def undo() -> None:
        for undo_one in undos:
            undo_one()
        undos.clear()

    return undo
