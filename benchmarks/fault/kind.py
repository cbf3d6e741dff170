"""The kinds of fault: those that models have places for, and those that change the program from outside."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fault.program import Program

WRONG = frozenset({"source", "entered", "missing", "drift"})
"""Verdicts that name a call as the place where it went wrong."""

Change = Callable[[Program, random.Random], str]


@dataclass(frozen=True)
class Kind:
    words: str
    direction: str = "forward"
    """Where the first wrong value is."""
    verdicts: frozenset[str] = WRONG
    """The verdicts that a user would accept, if the right call is named with them."""
    change: Change | None = None
    """What is done to the program of the candidate, for kinds that need no place; it says what it changed."""


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
    return name


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


KINDS: dict[str, Kind] = {
    "scale": Kind("a wrong scale, in attention and elsewhere"),
    "epsilon": Kind("a wrong epsilon in a normalisation"),
    "gelu": Kind("tanh GELU for exact GELU"),
    "gelu_by_hand": Kind("tanh GELU written out, many calls for one"),
    "swapped": Kind("swapped operands"),
    "operand": Kind("another tensor of the same shape as operand"),
    "transposed": Kind("a transposed weight"),
    "mask": Kind("a wrong mask"),
    "residual": Kind("a missing residual"),
    "dropout_state": Kind("dropout off where it should be on"),
    "dropout_share": Kind("another share of dropout"),
    "norm_state": Kind("BatchNorm in the wrong mode"),
    "head": Kind("permuted heads"),
    "slice": Kind("an off-by-one slice or shift"),
    "overflow": Kind("an integer overflow"),
    "nan": Kind("a NaN"),
    "reduction": Kind("a wrong reduction"),
    "smoothing": Kind("label smoothing in the loss"),
    "dimension": Kind("a wrong dimension of softmax or mean"),
    "activation": Kind("another activation function"),
    "bias": Kind("a missing bias"),
    "precision": Kind("one operation in bfloat16 and back"),
    "stale": Kind("a buffer that is not updated, or another one used"),
    "gradient_hook": Kind("a gradient scaled by a hook", direction="backward"),
    "gradient_function": Kind("a gradient scaled by an inserted autograd function", direction="backward"),
    "gradient_formula": Kind("a wrong backward of a custom autograd function", direction="backward"),
    "detach": Kind("a detached branch", direction="backward"),
    "data": Kind("other data", verdicts=frozenset({"entered"}), change=change_data),
    "start": Kind(
        "a parameter that differs from the start",
        verdicts=frozenset({"unequal start"}),
        change=change_start,
    ),
    "seed": Kind("another seed for dropout", verdicts=frozenset({"random", "source"}), change=change_seed),
    "untied": Kind("weights that are not tied any more", direction="backward", change=untie_weights),
}

REWRITES: dict[str, str] = {
    "split_linear": "each linear as the sum of two halves",
    "unfused": "fused attention written out",
}
"""What a program may write differently: planted at all places at once, and no fault."""
