"""The gradient of a tensor at one point of the program: the whole of it, summed over all who use the tensor.

The hook sits on the autograd node that made the tensor, not on the tensor, so that nothing is left on the user's object
and a later in-place change does not matter. A leaf has a node of its own only while somebody holds it: it is held until
the gradient has come or the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient import GradientTracer


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
    held: list[Any] = []

    def make_hook(index: int, number: int) -> Callable[[Any], None]:
        def receive_gradient(output_gradients: Any) -> None:
            if recorder.generation != generation or index not in waiting:
                return
            try:
                gradients.note_backward_pass()
                waiting.discard(index)
                if output_gradients[number] is not None:
                    with torch._C.DisableTorchFunction():
                        receive(index, output_gradients[number])
                if not waiting:
                    finish()
            except Exception as error:
                recorder.note_failure("the gradient of a saved variable", error)

        return receive_gradient

    for index, tensor in watched:
        edge = get_gradient_edge(tensor)
        handle = edge.node.register_prehook(make_hook(index, edge.output_nr))
        held.append((handle, edge.node if tensor.is_leaf else None))

    def undo() -> None:
        for handle, _ in held:
            handle.remove()
        held.clear()

    return undo
