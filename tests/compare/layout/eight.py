"""The model on eight ranks: several kinds of parallelism at once, right and with a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from tests.compare.layout.case import (
    Case,
    make_context,
    make_whole,
    read_part,
    reduce_gradients,
)
from tests.compare.layout.four import make_grid
from tests.compare.layout.model import Model, Plan, read_batch

COUNT = 8
NARROW = Plan(head=2)
"""With eight heads."""
MANY = Plan(experts=COUNT)
MASKED = Plan(dropout=0.2, draws_whole_mask=True)


def make_rows(width: int) -> tuple[int, int, list[Any], list[Any]]:
    """Ranks in rows of some width: the row and the column of this one, and the groups of each."""
    rank = dist.get_rank()
    rows = [dist.new_group(list(range(first, first + width))) for first in range(0, COUNT, width)]
    columns = [dist.new_group(list(range(first, COUNT, width))) for first in range(width)]
    return rank // width, rank % width, rows, columns


def make_tensor(fault: str = "", dropout: float = 0.0) -> Case:
    """Tensor parallel on all ranks; with a mistake of the seed, rank 5 has another one."""
    rank = dist.get_rank()
    model = Model(replace(NARROW, tensor=(rank, COUNT, dist.group.WORLD), fault=fault, dropout=dropout))
    tokens, labels = read_batch()

    def step() -> None:
        torch.manual_seed(5 + (rank == 5 and fault == "seed"))
        model(tokens, labels).mean().backward()

    return model, step


def make_masked(fault: str = "") -> Case:
    """Tensor parallel by 4, data parallel by 2, with dropout that is drawn for the whole batch."""
    place, column, rows, columns = make_rows(4)
    model = Model(replace(MASKED, tensor=(column, 4, rows[place]), data=(place, 2), fault=fault))
    tokens, labels = read_part(1, place, 2)

    def step() -> None:
        torch.manual_seed(5 + (dist.get_rank() == 5 and fault == "seed"))
        model(tokens, labels).mean().backward()
        reduce_gradients(model.parameters(), columns[column], 2)

    return model, step


def make_context_rows(fault: str = "") -> Case:
    """Context parallel by 4, data parallel by 2; with a mistake, on one rank only."""
    place, column, rows, _ = make_rows(4)
    own = fault if dist.get_rank() == 6 else ""
    model = Model(Plan(context=(column, 4, rows[place]), fault=own))
    tokens, labels = (part.chunk(4, 0)[column].contiguous() for part in read_part(1, place, 2))

    def step() -> None:
        model(tokens, labels).mean().backward()
        reduce_gradients(model.parameters(), dist.group.WORLD, COUNT)

    return model, step


def make_experts(fault: str = "") -> Case:
    """One expert on each rank, and one sample."""
    rank = dist.get_rank()
    model = Model(replace(MANY, expert=(rank, COUNT), fault=fault), has_experts=True)
    tokens, labels = read_part(1, rank, COUNT, COUNT)

    def step() -> None:
        model(tokens, labels).mean().backward()
        for name, parameter in model.named_parameters():
            if name.endswith(("mlp.up", "mlp.down")):
                parameter.grad /= COUNT
            else:
                reduce_gradients([parameter], dist.group.WORLD, COUNT)

    return model, step


def make_pipeline(fault: str = "") -> Case:
    """Two stages, each data parallel by 2 and tensor parallel by 2, with two micro-batches. With a mistake the last
    stage takes the labels of the other micro-batch: all its ranks, or those of one part of the data."""
    row, column, rows, _ = make_rows(2)
    stage, place = divmod(row, 2)
    pairs = [dist.new_group([first, first + 2]) for first in (0, 1, 4, 5)]
    model = Model(Plan((column, 2, rows[row])), stages=(stage,))
    parts = [read_part(1, 2 * place + number, 4) for number in range(2)]
    is_crossed = fault == "micro" or (fault == "one micro" and place == 1)
    other = (dist.get_rank() + 4) % COUNT

    def first() -> None:
        results = []
        for tokens, _ in parts:
            results.append(model(tokens))
            dist.send(results[-1].detach(), other)
        for result in results:
            gradient = torch.empty_like(result)
            dist.recv(gradient, other)
            result.backward(gradient)

    def second() -> None:
        taken, losses = [], []
        for number in range(2):
            x = torch.empty(8, 1, 16)
            dist.recv(x, other)
            taken.append(x.requires_grad_())
            losses.append(model(x, parts[1 - number if is_crossed else number][1]).mean() / 2)
        for x, loss in zip(taken, losses, strict=True):
            loss.backward()
            dist.send(x.grad, other)

    def step() -> None:
        (second if stage else first)()
        reduce_gradients(model.parameters(), pairs[2 * stage + column], 2)

    return model, step


EIGHT: dict[str, Callable[[], Case]] = {
    "grid8": make_grid,
    "wide8": lambda: make_grid(width=4),
    "cp8": make_context,
    "tp8": make_tensor,
    "tp8_dropout": lambda: make_tensor(dropout=0.2),
    "masked8": make_masked,
    "cp_dp8": make_context_rows,
    "ep8": make_experts,
    "pp8": make_pipeline,
    "grid8.no_reduce": lambda: make_grid("no reduce"),
    "grid8.no_copy": lambda: make_grid("no copy"),
    "grid8.left_out": lambda: make_grid("left out"),
    "grid8.stale": lambda: make_grid("stale"),
    "grid8.twice": lambda: make_grid("twice"),
    "grid8.data": lambda: make_grid("data"),
    "wide8.few": lambda: make_grid("few", 4),
    "cp8.rotary": lambda: make_context("rotary"),
    "wide8.offset": lambda: make_grid("offset", 4),
    "tp8.offset": lambda: make_tensor("offset"),
    "tp8_dropout.seed": lambda: make_tensor("seed", 0.2),
    "masked8.seed": lambda: make_masked("seed"),
    "cp_dp8.rotary": lambda: make_context_rows("rotary"),
    "ep8.expert": lambda: make_experts("expert"),
    "pp8.micro": lambda: make_pipeline("micro"),
    "pp8.one_micro": lambda: make_pipeline("one micro"),
}
EIGHT_REFERENCES: dict[str, Callable[[], Case]] = {
    "whole": make_whole,
    "tp8": lambda: make_whole(NARROW),
    "tp8_dropout": lambda: make_whole(replace(NARROW, dropout=0.2)),
    "masked8": lambda: make_whole(MASKED),
    "ep8": lambda: make_whole(MANY, has_experts=True, samples=COUNT),
}


def find_eight_reference(case: str) -> str:
    """The name of the whole that a case is held against."""
    layout = case.partition(".")[0]
    return layout if layout in EIGHT_REFERENCES else "whole"
