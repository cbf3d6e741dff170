"""Weights as numpy arrays, and how far loss and gradients of two steps lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Weights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Step:
    loss: float
    gradients: Weights
    """By name; in a pair of frameworks, the candidate's names."""


def draw_weights(network: torch.nn.Module, seed: int = 7) -> Weights:
    """Numbers of a sensible size for each parameter; buffers stay as they are."""
    random = np.random.default_rng(seed)
    weights = {
        name: (buffer.float() if buffer.dtype == torch.bfloat16 else buffer).numpy().copy()  # numpy has no bfloat16
        for name, buffer in network.named_buffers()
        if buffer.is_floating_point()
    }
    for name, parameter in network.named_parameters():
        numbers = np.asarray(random.normal(size=tuple(parameter.shape)))
        if parameter.ndim > 1:
            terms = parameter.shape[1:] if "experts." not in name else parameter.shape[-1:]  # a stack of matrices
            numbers *= float(np.prod(terms)) ** -0.5
        elif name.endswith(("weight", "scale")):
            numbers = 1 + 0.2 * numbers
        else:
            numbers *= 0.1
        weights[name] = np.asarray(numbers, np.float32)
    return weights


def measure_difference(first: Step, second: Step) -> tuple[float, float]:
    """The relative difference of the losses, and the largest one of a gradient, by the largest elements."""
    loss = abs(first.loss - second.loss) / max(abs(first.loss), 1e-30)
    scale = max(float(np.abs(one).max()) for one in second.gradients.values())
    gradient = 0.0
    for name, array in second.gradients.items():
        size = max(float(np.abs(array).max()), 0.02 * scale)  # next to nothing is rounding
        gradient = max(gradient, float(np.abs(first.gradients[name] - array).max()) / size)
    return loss, gradient
