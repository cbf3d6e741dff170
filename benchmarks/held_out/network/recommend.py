"""Embedding bags of hashed features, dot products between all pairs of them, and two small networks around."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NUMBERS, TABLES, ROWS, BAG, WIDTH, BATCH = 6, 3, 11, 4, 8, 5
PAIRS = (TABLES + 1) * TABLES // 2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = torch.nn.Sequential(torch.nn.Linear(NUMBERS, WIDTH), torch.nn.ReLU())
        tables = [torch.nn.EmbeddingBag(ROWS, WIDTH, mode="mean") for _ in range(TABLES)]  # @tables
        self.tables = torch.nn.ModuleList(tables)
        self.top = torch.nn.Sequential(torch.nn.Linear(PAIRS + WIDTH, 12), torch.nn.Hardswish(), torch.nn.Linear(12, 1))

    def forward(self, numbers, features):
        dense = self.bottom(numbers)  # @bottom
        rows = features % ROWS  # @hash
        bags = [table(rows[:, number]) for number, table in enumerate(self.tables)]  # @bag
        stacked = torch.stack([dense, *bags], dim=1)  # @stacked
        products = torch.bmm(stacked, stacked.transpose(1, 2))  # @products
        row, column = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        pairs = products[:, row, column]  # @pairs
        return self.top(torch.cat([dense, pairs], dim=1)).squeeze(1)  # @top


def compute_reference_loss(network, numbers, features, clicks):
    return F.binary_cross_entropy_with_logits(network(numbers, features), clicks)  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Dense(NUMBERS, WIDTH, activation="relu")
        self.tables = Parameter(ops.zeros((TABLES * ROWS, WIDTH)), name="tables")
        self.top = nn.SequentialCell(nn.Dense(PAIRS + WIDTH, 12), nn.HSwish(), nn.Dense(12, 1))  # @made

    def construct(self, numbers: Tensor, features: Tensor) -> Tensor:
        dense = self.bottom(numbers)  # @bottom
        rows = ops.floor_mod(features, ROWS)  # @hash
        rows = rows + Tensor(np.arange(TABLES, dtype=np.int32) * ROWS).reshape(1, TABLES, 1)  # @offset
        bags = ops.gather(self.tables, rows, 0).mean(2)  # @bag
        stacked = mint.cat((dense.expand_dims(1), bags), dim=1)  # @stacked
        products = ops.bmm(stacked, stacked.swapaxes(1, 2))  # @products
        row, column = np.tril_indices(TABLES + 1, k=-1)
        place = Tensor((row * (TABLES + 1) + column).astype(np.int32))  # @place
        pairs = ops.gather(products.reshape(BATCH, -1), place, 1)  # @pairs
        return self.top(ops.cat((dense, pairs), 1)).squeeze(1)  # @top


def compute_candidate_loss(network, numbers, features, clicks):
    logits = network(numbers, features)
    return (ops.softplus(logits) - logits * clicks).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if name.startswith("top")}
    converted["bottom.weight"], converted["bottom.bias"] = weights["bottom.0.weight"], weights["bottom.0.bias"]
    converted["tables"] = np.concatenate([weights[f"tables.{number}.weight"] for number in range(TABLES)])  # @load
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1300 + step)
    numbers = np.log1p(random.exponential(size=(BATCH, NUMBERS))).astype(np.float32)
    features = random.integers(1000, size=(BATCH, TABLES, BAG))
    return numbers, features, random.integers(2, size=BATCH).astype(np.float32)


FAULTS = (
    Fault("bags summed", "bag", ".mean(2)", ".sum(2)"),
    Fault(
        "hash by division", "hash offset bag", "ops.floor_mod(features, ROWS)", "ops.floor_div(features, ROWS) % ROWS"
    ),
    Fault("pairs before the numbers", "top", "(dense, pairs)", "(pairs, dense)"),
    Fault(
        "pairs in reverse",
        "pairs",
        "row * (TABLES + 1) + column",
        "np.sort(row * (TABLES + 1) + column)[::-1]",
        edit="place",
    ),
    Fault("relu for hardswish", "top", "nn.HSwish()", "nn.ReLU()", edit="made"),
    Fault("tables in another order", "bag", "range(TABLES)", "(1, 0, 2)", edit="load", parameter="tables.0.weight"),
    Fault("loss summed", "loss", ".mean()", ".sum()"),
    Fault(
        "numbers detached in the products",
        "stacked",
        "dense.expand_dims(1)",
        "ops.stop_gradient(dense).expand_dims(1)",
        is_backward=True,
    ),
    Fault("bags summed in the reference", "bag", 'mode="mean"', 'mode="sum"', edit="tables", side="reference"),
)
