"""Runs a pair of networks in PyTorch from the same numpy weights, in any type of numbers.

A file of `refactor` has what one of `network` has. A loss may also be yielded in parts: each goes back at once, and the
gradients are their sum. `finish_reference` and `finish_candidate`, where there are such, take the network after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch

from held_out.source import LEARNING_RATE, bind_step
from held_out.weight import Step, Weights, draw_weights

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "autocast": torch.float32,
    "float64": torch.float64,
}


def run_reference(module: ModuleType, steps: int, debugger: Any = None, dtype: str = "float32") -> Iterator[Step]:
    """Trains it, and yields each step; gradients by the names of the candidate."""
    with set_default(dtype):
        network, _ = make_reference(module)
        for step in _train(module, "reference", network, steps, debugger, dtype):
            buffers = _to_numpy(network.named_buffers())
            converted = module.convert({**buffers, **step.gradients})
            gradients = {name: array for name, array in converted.items() if ".running_" not in f".{name}"}
            yield Step(step.loss, gradients)


def run_candidate(module: ModuleType, steps: int, debugger: Any = None, dtype: str = "float32") -> Iterator[Step]:
    with set_default(dtype):
        network = make_candidate(module, make_reference(module)[1])
        yield from _train(module, "candidate", network, steps, debugger, dtype)


def make_reference(module: ModuleType) -> tuple[torch.nn.Module, Weights]:
    network = module.Reference()
    weights = draw_weights(network)
    network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()}, strict=False)
    return network.train(), weights


def make_candidate(module: ModuleType, weights: Weights) -> torch.nn.Module:
    network = module.Candidate()
    converted = module.convert(weights)
    state = network.state_dict()
    if unknown := (set(converted) - set(state)) | (set(dict(network.named_parameters())) - set(converted)):
        raise ValueError(f"{module.__name__}: one side alone has the weights {sorted(unknown)}")
    for name, array in converted.items():
        if tuple(state[name].shape) != array.shape:
            raise ValueError(f"{module.__name__}: {name} is {tuple(state[name].shape)} and was given {array.shape}")
    arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in converted.items()}
    network.load_state_dict({name: tensor.reshape(state[name].shape) for name, tensor in arrays.items()}, strict=False)
    return network.train()


def _train(
    module: ModuleType, side: str, network: torch.nn.Module, steps: int, debugger: Any, dtype: str
) -> Iterator[Step]:
    torch.set_num_threads(1)
    network.to(DTYPES[dtype])
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    finish: Callable[[Any], None] | None = getattr(module, f"finish_{side}", None)
    for step in range(steps):
        batch = [_to_tensor(array, DTYPES[dtype]) for array in module.make_batch(step)]
        compute_loss = bind_step(getattr(module, f"compute_{side}_loss"), step)
        optimizer.zero_grad()
        if debugger is not None:
            debugger.start(network)
        losses = []
        for loss in _compute_parts(lambda compute_loss=compute_loss, batch=batch: compute_loss(network, *batch), dtype):
            loss.backward()
            losses.append(loss)
        if finish is not None:
            finish(network)
        if debugger is not None:
            debugger.stop()
        gradients = _to_numpy((name, _gradient_of(one)) for name, one in network.named_parameters())
        optimizer.step()
        if debugger is not None:
            debugger.step()
        yield Step(sum(loss.item() for loss in losses), gradients)


def _compute_parts(compute_loss: Callable[[], Any], dtype: str) -> Iterator[torch.Tensor]:
    """Each part under autocast, its backward outside of it."""
    with make_context(dtype):
        parts = compute_loss()
    if not isinstance(parts, GeneratorType):
        yield parts
        return
    while True:
        with make_context(dtype):
            part = next(parts, None)
        if part is None:
            return
        yield part


def make_context(dtype: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else nullcontext()


@contextmanager
def set_default(dtype: str) -> Iterator[None]:
    """In float64, what a program makes itself is float64 as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == "float64" else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _to_numpy(tensors: Any) -> Weights:
    """Numpy has no bfloat16."""
    arrays = {}
    for name, tensor in tensors:
        if tensor.is_floating_point():
            tensor = tensor.detach()
            arrays[name] = (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy().copy()
    return arrays


def _to_tensor(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
