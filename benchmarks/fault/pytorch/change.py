"""What a fault from outside does to a program; each says what it changed."""

from __future__ import annotations

import random

import torch
from torch import nn

from fault.program import Program


def change_data(program: Program, draw: random.Random) -> str:
    """One element of the batch is another."""
    batch = program.batches[0]
    name = draw.choice(sorted(batch))
    tensor = batch[name].clone()
    index = tuple(draw.randrange(size) for size in tensor.shape)
    tensor[index] = tensor[index] + 1 if tensor[index] == 0 else tensor[index] - 1
    batch[name] = tensor
    return name


def change_start(program: Program, draw: random.Random) -> str:
    """One parameter differs a little: one number of it by a thousandth, or all by noise."""
    name, parameter = draw.choice(list(program.model.named_parameters()))
    with torch.no_grad():
        if draw.random() < 0.5:
            parameter.mul_(1.01)
            parameter.add_(0.001)
        else:
            parameter.view(-1)[draw.randrange(parameter.numel())] += 0.01
    return str(name)


def change_seed(program: Program, draw: random.Random) -> str:
    program.step_seed += 1 + draw.randrange(100)
    return ""


def untie_weights(program: Program, draw: random.Random) -> str:
    """Two parameters that were one: equal in this step's forward, each with a gradient of its own."""
    first, second = draw.choice(program.tied)
    owner, _, name = second.rpartition(".")
    tied = program.model.get_parameter(first)
    setattr(program.model.get_submodule(owner), name, nn.Parameter(tied.detach().clone()))
    return f"{first} {second}"


CHANGES = {"data": change_data, "start": change_start, "seed": change_seed, "untied": untie_weights}
