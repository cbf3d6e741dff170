"""Builds a pair of networks from the same numpy weights, and computes loss and gradients of both, without tensorprobe.

A file of `network` has: `Reference` and `Candidate`, `compute_reference_loss` and `compute_candidate_loss` of a network
and a batch, `convert` (weights of the reference by the names and in the layout of the candidate; gradients go the same
way), `make_batch` of a step, and `FAULTS`. A loss may ask for the number of the step by the name `step`.

A file that trains in a way of its own has `ReferenceTrainer` and `CandidateTrainer` of a network in the place of the
two losses. `step` of them takes a batch, goes back and updates, all of which is recorded, and returns the loss; the
candidate's also the gradients as they were given to the optimizer, in the order of the trainable parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mindspore
import numpy as np
import torch

from held_out.source import LEARNING_RATE, bind_step, load_network
from held_out.weight import Step, Weights, draw_weights

__all__ = ["load_network"]


def set_up() -> None:
    """Once in a process, before the first operation of MindSpore: its bits then repeat."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()
    mindspore.device_context.cpu.op_tuning.threads_num(1)
    torch.set_num_threads(1)


def make_reference(module: ModuleType) -> tuple[torch.nn.Module, Weights]:
    """The network in PyTorch, and the weights that it begins with."""
    network = module.Reference()
    weights = draw_weights(network)
    network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()}, strict=False)
    return network.train(), weights


def make_candidate(module: ModuleType, weights: Weights) -> mindspore.nn.Cell:
    """The network in MindSpore, from the weights of the reference."""
    network = module.Candidate()
    converted = module.convert(weights)
    parameters = dict(network.parameters_and_names())
    if unknown := set(converted) ^ set(parameters):
        raise ValueError(f"{module.__name__}: one side alone has the weights {sorted(unknown)}")
    for name, parameter in parameters.items():
        array = np.ascontiguousarray(converted[name])
        if tuple(parameter.shape) != array.shape:
            raise ValueError(f"{module.__name__}: {name} is {parameter.shape} and was given {array.shape}")
        parameter.set_data(mindspore.Tensor(array))
    return network.set_train()


def make_batch(module: ModuleType, step: int, side: str) -> list[Any]:
    """PyTorch takes integers as int64, MindSpore as int32."""
    arrays = module.make_batch(step)
    if side == "reference":
        return [torch.from_numpy(array) for array in arrays]
    return [mindspore.Tensor(array.astype(np.int32) if array.dtype == np.int64 else array) for array in arrays]


def run_reference(module: ModuleType, steps: int, debugger: Any = None) -> Iterator[Step]:
    """Trains it, and yields each step."""
    network, _ = make_reference(module)
    if hasattr(module, "ReferenceTrainer"):
        for loss in _run_trainer(module, "reference", network, steps, debugger):
            yield Step(loss.item(), _convert_gradients(module, network, _take_gradients(network)))
        return
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        batch = make_batch(module, step, "reference")
        compute_loss = bind_step(module.compute_reference_loss, step)
        if debugger is not None:
            debugger.start(network)
        loss = compute_loss(network, *batch)
        optimizer.zero_grad()
        loss.backward()
        if debugger is not None:
            debugger.stop()
        gradients = _take_gradients(network)
        optimizer.step()
        if debugger is not None:
            debugger.step()
        yield Step(loss.item(), _convert_gradients(module, network, gradients))


def _run_trainer(module: ModuleType, side: str, network: Any, steps: int, debugger: Any) -> Iterator[Any]:
    """What each step of the file's own trainer returns; its update is recorded, too."""
    trainer = getattr(module, f"{side.capitalize()}Trainer")(network)
    for step in range(steps):
        batch = make_batch(module, step, side)
        if debugger is not None:
            debugger.start(network)
        result = trainer.step(*batch)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        yield result


def _take_gradients(network: torch.nn.Module) -> Weights:
    return {
        name: np.zeros(tuple(one.shape), np.float32) if one.grad is None else one.grad.numpy().copy()
        for name, one in network.named_parameters()
    }


def _convert_gradients(module: ModuleType, network: torch.nn.Module, gradients: Weights) -> Weights:
    buffers = {name: buffer.numpy() for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    converted = module.convert({**buffers, **gradients})
    return {name: array for name, array in converted.items() if ".moving_" not in name}


def run_candidate(module: ModuleType, steps: int, debugger: Any = None) -> Iterator[Step]:
    network = make_candidate(module, make_reference(module)[1])
    names = {id(parameter): name for name, parameter in network.parameters_and_names()}
    parameters = list(network.trainable_params())
    if hasattr(module, "CandidateTrainer"):
        frozen = [one for one in network.get_parameters() if not one.requires_grad]
        zeros = {names[id(one)]: np.zeros(one.shape, np.float32) for one in frozen}
        for loss, gradients in _run_trainer(module, "candidate", network, steps, debugger):
            arrays = {names[id(one)]: value.asnumpy() for one, value in zip(parameters, gradients, strict=True)}
            yield Step(float(loss.asnumpy()), zeros | arrays)
        return
    optimizer = mindspore.nn.SGD(parameters, learning_rate=LEARNING_RATE)
    for step in range(steps):
        batch = make_batch(module, step, "candidate")
        compute_loss = bind_step(module.compute_candidate_loss, step)
        compute = mindspore.value_and_grad(
            lambda *inputs, compute_loss=compute_loss: compute_loss(network, *inputs), None, optimizer.parameters
        )
        if debugger is not None:
            debugger.start(network)
        loss, gradients = compute(*batch)
        if debugger is not None:
            debugger.stop()
        optimizer(gradients)
        if debugger is not None:
            debugger.step()
        arrays = {names[id(one)]: value.asnumpy() for one, value in zip(parameters, gradients, strict=True)}
        yield Step(float(loss.asnumpy()), arrays)


def rename(weights: Weights, norms: tuple[str, ...] = (), names: dict[str, str] | None = None) -> Weights:
    """MindSpore's names: gamma and beta of norms (by the last word of their path), and others by a table."""
    words = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    renamed = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        is_norm = path.rpartition(".")[2].rstrip("0123456789") in norms
        renamed[(names or {}).get(name, f"{path}.{words[word]}" if is_norm else name)] = array
    return renamed
