"""One run of a function for `tensorprobe.check`: what it needs of MindSpore. Nothing of the run is left on the caller's
cells: their parameters and modes are afterwards what they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops

from tensorprobe.capture.mindspore.seed import seed_all
from tensorprobe.errors import UsageError
from tensorprobe.model.tree import map_tree

__all__ = ["Kept", "copy_model", "copy_tensor", "is_model", "is_tensor", "run", "seed_all"]


def is_model(value: Any) -> bool:
    return isinstance(value, nn.Cell)


def is_tensor(value: Any) -> bool:
    return isinstance(value, mindspore.Tensor)


def copy_tensor(tensor: Any, dtype: Any = None, device: Any = None) -> Any:
    """A new tensor with the same content; `dtype` is for floating-point numbers."""
    _refuse(device)
    return tensor.astype(dtype) if dtype is not None and tensor.is_floating_point() else tensor.copy()


def copy_model(model: Any, dtype: Any = None, device: Any = None) -> Any:
    """The same cell in another dtype; the given one stays as it is."""
    _refuse(device)
    copied = copy.deepcopy(model)
    for parameter in copied.get_parameters():
        if dtype is not None and parameter.is_floating_point():
            parameter.set_dtype(dtype)
    return copied


def _refuse(device: Any) -> None:
    if device is not None:
        raise UsageError(
            f"device is {device!r}, and MindSpore computes on one device in a process. Record each side in a process "
            "of its own, and compare the two dumps with tensorprobe.compare."
        )


class Kept:
    """Holds what a run may change of cells, and brings it back at the end."""

    def __init__(self, models: Iterable[Any]) -> None:
        self._cells = list(dict.fromkeys(cell for model in models for _, cell in model.cells_and_names()))
        self._modes: list[tuple[Any, bool]] = []
        self._contents: list[tuple[Any, Any]] = []
        self.weights = [one for model in models for one in model.trainable_params()]

    def __enter__(self) -> Kept:
        self._modes = [(cell, cell.training) for cell in self._cells]
        parameters = {id(one): one for cell in self._cells for one in cell.get_parameters(expand=False)}
        self._contents = [(one, one.asnumpy().copy()) for one in parameters.values()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for cell, is_training in self._modes:
            cell.training = is_training
        for parameter, content in self._contents:
            if not np.array_equal(parameter.asnumpy(), content):
                parameter.set_data(mindspore.Tensor(content, parameter.dtype))


def run(call: Callable[[], Any], backward: bool, kept: Kept) -> None:
    """Call it, and differentiate what it returns with respect to the trainable parameters.

    A result that is one number is the loss. Otherwise every floating-point result takes part, each element with a fixed
    weight: the plain sum of a softmax or of a layer norm has no gradient.
    """
    if not backward or not kept.weights:
        call()
        return
    mindspore.value_and_grad(lambda: _loss_of(call()), None, kept.weights)()


def _loss_of(output: Any) -> Any:
    results = _tensors_in(output)
    losses = [tensor for tensor in results if tensor.ndim == 0]
    if losses or not results:
        return losses[0] if losses else output
    return sum((tensor * _weights_like(tensor)).sum() for tensor in results)


def _tensors_in(tree: Any) -> list[Any]:
    found: list[Any] = []

    def take(value: Any, path: str) -> None:
        if is_tensor(value) and value.is_floating_point():
            found.append(value)

    map_tree(tree, "", take, (mindspore.Tensor,))
    return found


def _weights_like(tensor: Any) -> Any:
    """From -17/16 to 15/16, none of them 0: exact in every floating-point dtype of 16 bits or more."""
    weights = (np.arange(tensor.size) * 7 % 17 * 2 - 17) / 16
    return ops.cast(mindspore.Tensor(weights.reshape(tensor.shape).astype(np.float32)), tensor.dtype)
