"""Third-party models with random weights, and the training step that is recorded."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from held_out.patch import Fault, Patch, plant
from held_out.variant import PLAIN, Inputs, Variant, choose_processors, make_optimizer, set_threads, split_inputs
from held_out.weight import Step, draw_weights

os.environ.setdefault("HF_HUB_OFFLINE", "1")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def take_loss(network: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The loss that a model computes itself."""
    loss: torch.Tensor = network(**inputs).loss
    return loss


@dataclass(frozen=True)
class Model:
    name: str
    network: str
    """The class in the library."""
    config: str
    """The class of its configuration; `""`: it takes the settings itself."""
    settings: dict[str, Any]
    make_inputs: Callable[[np.random.Generator], Inputs]
    variants: tuple[Variant, ...]
    faults: tuple[Fault, ...]
    has_attention: bool = True
    """It can be told which implementation of attention to use."""
    has_experts: bool = False
    """… and which one of experts."""
    library: str = "transformers"
    compute_loss: Callable[[nn.Module, Inputs], torch.Tensor] = take_loss

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.library) is not None

    @property
    def files(self) -> str:
        """A pattern of the files in which the library defines its models."""
        return "*/modeling_*.py" if self.library == "transformers" else f"*/{self.library}/models/*.py"

    def build(self, dtype: str, variant: Variant = PLAIN) -> nn.Module:
        network = self._make_network(variant)
        weights = {name: torch.from_numpy(array) for name, array in draw_weights(network).items()}
        network.load_state_dict(weights, strict=False)
        nn.Module.to(network, DTYPES[dtype]).train()  # diffusers warns in its own `to`
        variant.change(network)
        return network

    def _make_network(self, variant: Variant) -> nn.Module:
        library = importlib.import_module(self.library)
        network = getattr(library, self.network)
        if not self.config:
            made: nn.Module = network(**self.settings)
            choose_processors(made, variant.attention)
            return made
        config = getattr(library, self.config)(**self.settings)
        if self.has_attention:
            config._attn_implementation = variant.attention or "eager"
        if self.has_experts:
            config._experts_implementation = variant.experts or "eager"
        return network(config)

    def make_batch(self, step: int, dtype: str) -> Inputs:
        inputs = self.make_inputs(np.random.default_rng(50 + step))
        return {name: _to_tensor(value, DTYPES[dtype]) for name, value in inputs.items()}


def _to_tensor(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@dataclass
class Training:
    """A few steps of a model, run one way, with a fault or without; `lines` are known once the fault is planted."""

    model: Model
    dtype: str = "float32"
    variant: Variant = PLAIN
    fault: Fault | None = None
    steps: int = 1
    lines: frozenset[tuple[str, int]] = frozenset()

    def run(self, debugger: Any = None) -> Iterator[Step]:
        torch.manual_seed(0)  # some models draw numbers that then change nothing
        network = self.model.build(self.dtype, self.variant)
        optimizer = make_optimizer(network, self.variant)
        patch: Patch | None = None
        try:
            with set_threads(self.variant.threads):
                for step in range(self.steps):
                    if self.fault is not None and step == self.fault.first_step:
                        patch = plant(network, self.fault)
                        self.lines = patch.lines
                    yield self._run_step(network, optimizer, step, debugger)
        finally:
            if patch is not None:
                patch.undo()

    def _run_step(self, network: nn.Module, optimizer: torch.optim.Optimizer, step: int, debugger: Any) -> Step:
        parts = split_inputs(self.model.make_batch(step, self.dtype), self.variant.parts)
        optimizer.zero_grad()
        if debugger is not None:
            debugger.start(model=network)
        losses = []
        for inputs in parts:
            loss = self.model.compute_loss(network, inputs)
            loss = loss / len(parts) if len(parts) > 1 else loss
            loss.backward()
            losses.append(loss)
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        gradients = {
            name: np.zeros(tuple(one.shape), np.float32) if one.grad is None else one.grad.float().numpy().copy()
            for name, one in network.named_parameters()
        }
        return Step(sum(loss.item() for loss in losses), gradients)
