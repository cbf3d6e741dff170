"""The gradient of a tensor at one point of the program: the whole of it, summed over all who use the tensor.

The hook sits on the node that made the tensor, not on the tensor, so that nothing is left on the user's object. The
node of an input or a parameter does not run: there the hook is on the tensor, until the gradient has come or the step
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mindspore import Tensor

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.executor import executor
from tensorprobe.capture.mindspore.gradient import GradientTracer
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.tensor_hook import hook_tensor
from tensorprobe.capture.recorder import Recorder


def watch_gradient(
    recorder: Recorder,
    gradients: GradientTracer,
    tensors: Sequence[Tensor],
    receive: Callable[[int, Any], None],
    finish: Callable[[], None],
) -> Undo | None:
    """Call `receive(index, gradient)` for each, and `finish` after the last."""
    if not executor.requires_grad():
        return None
    watched = [(index, tensor) for index, tensor in enumerate(tensors) if tensor._requires_grad]
    if not watched:
        return None
    generation = recorder.generation
    waiting = {index for index, _ in watched}
    handles: list[Any] = []

    def take(index: int, gradient: Any) -> None:
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

    for index, tensor in watched:
        handles.append(hook_gradient(tensor, partial(take, index)))

    def undo() -> None:
        waiting.clear()
        gradients.removal.discard(handles)
        handles.clear()

    return undo


def hook_gradient(tensor: Tensor, take: Callable[[Any], None]) -> Any:
    """Have `take` called with the whole gradient of a tensor; what is returned has `remove`."""
    node, number = tensor._grad_node, tensor._output_index

    def take_from_node(output_gradients: Any) -> None:
        take(output_gradients[number])

    def take_from_tensor(gradient: Any) -> None:
        take(gradient)

    if node is None or node.is_leaf():
        return hook_tensor(tensor, take_from_tensor)
    return node.register_prehook(take_from_node)
