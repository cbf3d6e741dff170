"""Clicks from crossed fields, a weighed history and a deep part: one table, or one for each field in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

FIELDS, NUMBERS, ITEMS, SIZE, ASK, DEEP, TIME, BATCH, HEAVY, DECAY = (
    (7, 5, 9, 5),
    3,
    11,
    6,
    8,
    (16, 8),
    6,
    12,
    3.0,
    0.02,
)
STARTS = np.cumsum((0, *FIELDS[:-1]))
COUNT = len(FIELDS) + NUMBERS + 1


class Dice(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(width, eps=1e-3, affine=False, track_running_stats=False)
        self.alpha = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        chance = torch.sigmoid(self.bn(x))  # @dice_mean @dice_variance @dice_norm @dice_chance
        return chance * x + (1 - chance) * self.alpha * x  # @dice


class Interest(torch.nn.Module):
    """The more a thing of the past is like the item, the more it counts; the weights need not sum to one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(4 * SIZE, ASK)
        self.dice = Dice(ASK)
        self.fc2 = torch.nn.Linear(ASK, 1)

    def forward(self, item, history, mask):
        query = item.unsqueeze(1).expand_as(history)
        x = torch.cat([query, history, query - history, query * history], dim=-1)  # @apart @asked
        h = self.dice(self.fc1(x).flatten(0, 1))  # @ask @ask_sum
        weight = self.fc2(h).view(mask.shape)  # @weight
        weight = weight.masked_fill(~mask, 0.0)  # @masked
        return torch.matmul(weight.unsqueeze(1), history).squeeze(1)  # @interest


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(sum(FIELDS), SIZE)
        self.linear = torch.nn.Embedding(sum(FIELDS), 1)
        self.number_table = torch.nn.Parameter(torch.zeros(NUMBERS, SIZE))
        self.number_linear = torch.nn.Linear(NUMBERS, 1)
        self.items = torch.nn.Embedding(ITEMS, SIZE, padding_idx=0)
        self.interest = Interest()
        self.deep = torch.nn.Sequential(
            torch.nn.Linear((COUNT + 1) * SIZE, DEEP[0], bias=False),
            torch.nn.BatchNorm1d(DEEP[0], track_running_stats=False),
            torch.nn.ReLU(),
            torch.nn.Linear(DEEP[0], DEEP[1]),
            torch.nn.ReLU(),
            torch.nn.Linear(DEEP[1], 1),
        )
        self.register_buffer("starts", torch.from_numpy(STARTS), persistent=False)

    def forward(self, fields, numbers, item, history, lengths):
        fields = fields + self.starts
        numbers = torch.log1p(numbers.clamp(min=0))  # @clipped @logs
        item = self.items(item)  # @item
        past = self.items(history)  # @past
        scaled = numbers.unsqueeze(-1) * self.number_table  # @vectors
        vectors = torch.cat([self.table(fields), scaled, item.unsqueeze(1)], dim=1)  # @vectors
        first = self.linear(fields).sum(dim=1) + self.number_linear(numbers)  # @first @first_sum
        crossed = vectors.sum(dim=1).square() - vectors.square().sum(dim=1)  # @crossed
        second = 0.5 * crossed.sum(dim=1, keepdim=True)  # @second
        mask = torch.arange(TIME) < lengths.unsqueeze(1)  # @mask
        interest = self.interest(item, past, mask)
        deep = self.deep(torch.cat([vectors.flatten(1), interest], dim=1))  # @deep @deep_norm @deep_relu @deep_last
        squares = vectors.square().sum() + past[mask].square().sum()  # @squares
        return (first + second + deep).squeeze(1), squares  # @logit


def compute_reference_loss(network, fields, numbers, item, history, lengths, clicked):
    logit, squares = network(fields, numbers, item, history, lengths)
    loss = F.binary_cross_entropy_with_logits(logit, clicked, pos_weight=torch.tensor(HEAVY))  # @hit @missed @clicks
    return loss + 0.5 * DECAY * squares / len(clicked)  # @decayed @loss


class Ask(nn.Cell):
    """The first layer in four parts: of the item, the past, what is between them, and their product."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.past = nn.Dense(SIZE, ASK), nn.Dense(SIZE, ASK, has_bias=False)
        self.between, self.product = nn.Dense(SIZE, ASK, has_bias=False), nn.Dense(SIZE, ASK, has_bias=False)
        self.alpha = Parameter(ops.zeros((ASK,)), name="alpha")
        self.weigh = nn.Dense(ASK, 1)

    def activate(self, x: Tensor) -> Tensor:
        centred = x - x.mean((0, 1), keep_dims=True)  # @dice_mean
        variance = ops.square(centred).mean((0, 1), keep_dims=True)  # @dice_variance
        chance = ops.sigmoid(centred / ops.sqrt(variance + 1e-3))  # @dice_norm @dice_chance
        return x * (self.alpha + (1 - self.alpha) * chance)  # @dice

    def construct(self, item: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        item = item.expand_dims(1)
        x = self.item(item) + self.past(past) + self.product(item * past)  # @ask @asked
        x = x + self.between(item - past)  # @apart @ask_sum
        weight = self.weigh(self.activate(x))  # @weight
        weight = weight * mask.expand_dims(-1)  # @masked
        return (weight * past).sum(1)  # @interest


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.CellList([nn.Embedding(count, SIZE) for count in FIELDS])
        self.linears = nn.CellList([nn.Embedding(count, 1) for count in FIELDS])
        self.number_table = Parameter(ops.zeros((NUMBERS, SIZE)), name="number_table")
        self.number_linear = nn.Dense(NUMBERS, 1)
        self.items = nn.Embedding(ITEMS, SIZE)
        self.ask = Ask()
        self.deep1 = nn.Dense((COUNT + 1) * SIZE, DEEP[0], has_bias=False)
        self.norm = nn.BatchNorm1d(DEEP[0], eps=1e-5, use_batch_statistics=True)  # @norm_made
        self.deep2, self.deep3 = nn.Dense(DEEP[0], DEEP[1], activation="relu"), nn.Dense(DEEP[1], 1)
        self.pairs = Tensor(np.triu(np.ones((COUNT, COUNT)), 1), ms.float32)  # @pairs_made

    def construct(self, fields, numbers, item, history, lengths):
        numbers = ops.clamp(numbers, 0.0, 1e9)  # @clipped
        numbers = ops.log1p(numbers)  # @logs
        item, past = self.items(item), self.items(history)  # @item @past
        past = ops.where(history.expand_dims(-1) > 0, past, ops.stop_gradient(past))  # @past @padded
        vectors = [table(fields[:, number]) for number, table in enumerate(self.tables)]  # @vectors
        scaled = numbers.expand_dims(-1) * self.number_table  # @vectors
        vectors = ops.cat((ops.stack(vectors, 1), scaled, item.expand_dims(1)), 1)  # @vectors
        first = self.number_linear(numbers)  # @first
        for number, linear in enumerate(self.linears):
            first = first + linear(fields[:, number])  # @first @first_sum
        crossed = ops.bmm(vectors, vectors.swapaxes(1, 2)) * self.pairs  # @crossed
        second = crossed.sum((1, 2)).expand_dims(1)  # @second
        mask = (ops.arange(TIME).expand_dims(0) < lengths.expand_dims(1)).astype(ms.float32)  # @mask
        interest = self.ask(item, past, mask)
        deep = self.deep1(ops.cat((vectors.reshape(len(vectors), -1), interest), 1))  # @deep
        deep = ops.relu(self.norm(deep))  # @deep_norm @deep_relu
        deep = self.deep3(self.deep2(deep))  # @deep_last
        squares = ops.square(vectors).sum() + (ops.square(past).sum(-1) * mask).sum()  # @squares
        return (first + second + deep).squeeze(1), squares  # @logit


def compute_candidate_loss(network, fields, numbers, item, history, lengths, clicked):
    logit, squares = network(fields, numbers, item, history, lengths)
    hit = HEAVY * clicked * ops.softplus(-logit)  # @hit
    missed = (1 - clicked) * ops.softplus(logit)  # @missed
    loss = ops.mean(hit + missed)  # @clicks
    return loss + squares * (DECAY / (2 * BATCH))  # @decayed @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    for number, (start, count) in enumerate(zip(STARTS, FIELDS, strict=True)):
        converted[f"tables.{number}.embedding_table"] = weights["table.weight"][start : start + count]
        converted[f"linears.{number}.embedding_table"] = weights["linear.weight"][start : start + count]  # @load
    for name in ("number_table", "number_linear.weight", "number_linear.bias"):
        converted[name] = weights[name]
    converted["items.embedding_table"] = weights["items.weight"]
    parts = np.split(weights["interest.fc1.weight"], 4, axis=1)
    for name, part in zip(("item", "past", "between", "product"), parts, strict=True):
        converted[f"ask.{name}.weight"] = part
    converted |= {"ask.item.bias": weights["interest.fc1.bias"], "ask.alpha": weights["interest.dice.alpha"]}
    for new, old in {"ask.weigh": "interest.fc2", "deep2": "deep.3", "deep3": "deep.5"}.items():
        converted |= {f"{new}.weight": weights[f"{old}.weight"], f"{new}.bias": weights[f"{old}.bias"]}
    converted |= {"deep1.weight": weights["deep.0.weight"], "norm.gamma": weights["deep.1.weight"]}
    converted |= {"norm.beta": weights["deep.1.bias"], "norm.moving_mean": np.zeros(DEEP[0], np.float32)}
    return converted | {"norm.moving_variance": np.ones(DEEP[0], np.float32)}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7800 + step)
    fields = np.stack([random.integers(count, size=BATCH) for count in FIELDS], axis=1)
    numbers = np.where(random.random((BATCH, NUMBERS)) < 0.2, -1, random.integers(30, size=(BATCH, NUMBERS)))
    lengths = random.integers(1, TIME + 1, size=BATCH)
    history = np.where(np.arange(TIME) < lengths[:, None], random.integers(1, ITEMS, size=(BATCH, TIME)), 0)
    clicked = (np.arange(BATCH) % 3 == 0).astype(np.float32)
    return fields, numbers.astype(np.float32), random.integers(1, ITEMS, size=BATCH), history, lengths, clicked


FAULTS = (
    Fault("missing numbers count as ones", "clipped logs", "ops.clamp(numbers, 0.0, 1e9)", "ops.abs(numbers)"),
    Fault(
        "fields crossed with themselves",
        "crossed second",
        "(COUNT, COUNT)), 1)",
        "(COUNT, COUNT)), 0)",
        edit="pairs_made",
    ),
    Fault("past less item", "apart ask_sum", "self.between(item - past)", "self.between(past - item)"),
    Fault(
        "unbiased variance",
        "dice_variance dice_norm",
        "ops.square(centred).mean((0, 1), keep_dims=True)",
        "ops.square(centred).sum((0, 1), keepdims=True) / (x.shape[0] * TIME - 1)",
    ),
    Fault("alpha on the other side", "dice", "self.alpha + (1 - self.alpha) * chance", "1 + (self.alpha - 1) * chance"),
    Fault(
        "chance passes no gradient",
        "dice dice_chance",
        "(1 - self.alpha) * chance",
        "(1 - self.alpha) * ops.stop_gradient(chance)",
        is_backward=True,
    ),
    Fault("padded places weigh", "masked interest", "weight * mask.expand_dims(-1)", "weight"),
    Fault(
        "weights sum to one",
        "masked weight",
        "weight * mask.expand_dims(-1)",
        "ops.softmax(weight - 1e9 * (1 - mask.expand_dims(-1)), 1)",
        edit="masked",
    ),
    Fault("padding learns", "padded past", "ops.stop_gradient(past)", "past", edit="padded", is_backward=True),
    Fault(
        "the past does not train the items",
        "past interest asked",
        "self.items(item), self.items(history)",
        "self.items(item), ops.stop_gradient(self.items(history))",
        is_backward=True,
    ),
    Fault("norm after the relu", "deep_norm deep_relu", "ops.relu(self.norm(deep))", "self.norm(ops.relu(deep))"),
    Fault("no weight of the clicks", "hit clicks", "HEAVY * clicked", "clicked"),
    Fault(
        "linear weights of two fields exchanged",
        "first first_sum",
        'f"linears.{number}.',
        'f"linears.{(0, 3, 2, 1)[number]}.',
        edit="load",
        parameter="linear",
    ),
    Fault(
        "reference decays the mean of all fields",
        "squares decayed",
        "vectors.square().sum() +",
        "vectors.square().mean() +",
        side="reference",
    ),
    Fault(
        "epsilon of the norm, and decay not halved",
        "deep_norm",
        "eps=1e-5",
        "eps=1e-2",
        edit="norm_made",
        second=("decayed", "(2 * BATCH)", "BATCH"),
    ),
)
