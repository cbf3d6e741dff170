"""What a fault from outside does to a program; each says what it changed."""

from __future__ import annotations

import random

from mindspore import Parameter, Tensor

from fault.program import Program


def change_data(program: Program, draw: random.Random) -> str:
    """One element of the batch is another."""
    batch = program.batches[0]
    name = draw.choice(sorted(batch))
    array = batch[name].asnumpy().copy()
    index = tuple(draw.randrange(size) for size in array.shape)
    array[index] = array[index] + 1 if array[index] == 0 else array[index] - 1
    batch[name] = Tensor(array)
    return name


def change_start(program: Program, draw: random.Random) -> str:
    """One parameter differs a little: one number of it by a thousandth, or all by noise."""
    named = [(name, one) for name, one in program.model.parameters_and_names() if one.requires_grad]
    name, parameter = draw.choice(named)
    array = parameter.asnumpy().copy()
    if draw.random() < 0.5:
        array = array * array.dtype.type(1.01) + array.dtype.type(0.001)
    else:
        array.reshape(-1)[draw.randrange(array.size)] += 0.01
    parameter.set_data(Tensor(array))
    return str(name)


def change_seed(program: Program, draw: random.Random) -> str:
    program.step_seed += 1 + draw.randrange(100)
    return ""


def untie_weights(program: Program, draw: random.Random) -> str:
    """Two parameters that were one: equal in this step's forward, each with a gradient of its own."""
    first, second = draw.choice(program.tied)
    cells = dict(program.model.cells_and_names())
    owner, _, name = first.rpartition(".")
    tied = getattr(cells[owner], name)
    owner, _, name = second.rpartition(".")
    setattr(cells[owner], name, Parameter(Tensor(tied.asnumpy().copy()), name=second))
    return f"{first} {second}"


CHANGES = {"data": change_data, "start": change_start, "seed": change_seed, "untied": untie_weights}
