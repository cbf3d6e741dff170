"""The model on four ranks, and on grids of ranks: tensor parallel in one direction, data parallel in the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist

from tests.compare.layout.case import Case, make_context, make_sharded, make_tensor, read_part, reduce_gradients
from tests.compare.layout.model import Model, Plan


def make_grid(fault: str = "", width: int = 2) -> Case:
    """Tensor parallel in groups of some width, data parallel across them."""
    rank, count = dist.get_rank(), dist.get_world_size()
    place, column, copies = rank // width, rank % width, count // width
    tensors = [dist.new_group(list(range(first, first + width))) for first in range(0, count, width)]
    data = [dist.new_group(list(range(first, count, width))) for first in range(width)]
    plan = Plan((column, width, tensors[place]), fault=fault)
    if fault == "few":
        pairs = [dist.new_group([first, first + 1]) for first in range(0, count, 2)]
        plan = replace(plan, few=pairs[rank // 2])
    model = Model(plan)
    if fault == "stale" and rank == count - 1:
        model.block.after.weight.data *= 0.99
    tokens, labels = read_part(1, 0 if fault == "data" and place == 1 else place, copies)

    def step() -> None:
        model(tokens, labels).mean().backward()
        left_out = model.head.norm.weight if fault == "left out" else None
        parameters = [one for one in model.parameters() if one is not left_out]
        reduce_gradients(parameters, data[column], copies * (copies if fault == "twice" else 1))

    return model, step


FOUR: dict[str, Callable[[], Case]] = {
    "tp4": make_tensor,
    "grid": make_grid,
    "fsdp2_4": make_sharded,
    "cp4": make_context,
    "tp4.few": lambda: make_tensor("few"),
    "tp4.stale": lambda: make_tensor("stale"),
    "grid.no_reduce": lambda: make_grid("no reduce"),
    "grid.left_out": lambda: make_grid("left out"),
}
