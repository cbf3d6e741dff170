"""Sets of different sizes, pooled by order and compared along learned directions; the port ranks instead of sorting."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

BATCH, POINTS, SIZE, WIDTH, KNOTS, LINES = 4, 6, 3, 7, 4, 5


class Pool(torch.nn.Module):
    """Each feature is sorted, and weighed by a line of pieces over the order from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.knots = torch.nn.Parameter(torch.zeros(WIDTH, KNOTS))

    def forward(self, h, mask):
        h = h.masked_fill(mask.unsqueeze(2) == 0, -1e4)  # @hidden
        h = torch.sort(h, dim=1, descending=True).values * mask.unsqueeze(2)  # @order
        place = torch.arange(POINTS) / (mask.sum(dim=1, keepdim=True) - 1)  # @share
        place = place.clamp(max=1) * (KNOTS - 1)  # @place
        left = place.floor().clamp(max=KNOTS - 2)
        part = (place - left).unsqueeze(1)
        before, after = (self.knots[:, (left + n).long()].transpose(0, 1) for n in (0, 1))
        weight = before * (1 - part) + after * part  # @hats @weight
        return (h * weight.transpose(1, 2)).sum(dim=1)  # @pooled


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.second = torch.nn.Linear(SIZE, WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.pool = Pool()
        self.size = torch.nn.Linear(WIDTH, 1)
        self.decode = torch.nn.Linear(WIDTH, POINTS * SIZE)
        self.lines = torch.nn.Parameter(torch.zeros(LINES, SIZE))

    def forward(self, x, mask):
        h = F.softplus(self.enter(x))  # @enter @soft
        mean = (h * mask.unsqueeze(2)).sum(dim=1, keepdim=True) / mask.sum(dim=1)[:, None, None]  # @sum @mean
        h = torch.tanh(self.second(torch.cat([h, mean.expand_as(h)], dim=2)))  # @second
        z = self.pool(h, mask)
        return self.decode(z).view(-1, POINTS, SIZE), self.size(z).squeeze(1)  # @decode @size


def compute_reference_loss(network, x, mask, goal):
    found, size = network(x, mask)
    lines = F.normalize(network.lines, dim=1)  # @length @lines
    ours, theirs = (torch.sort(one @ lines.t(), dim=1).values for one in (found, goal))  # @ours @theirs
    far = (ours - theirs).pow(2).mean()  # @far
    count = F.poisson_nll_loss(size, mask.sum(dim=1), log_input=True)  # @count
    return far + 0.1 * count  # @loss


class Ranked(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.knots = ms.Parameter(ops.zeros((KNOTS, WIDTH)), name="knots")
        self.numbers = ms.Tensor(np.arange(KNOTS), ms.float32)

    def construct(self, h, mask):
        larger = (h.expand_dims(1) > h.expand_dims(2)).astype(ms.float32)  # @larger
        rank = (larger * mask.reshape(-1, 1, POINTS, 1)).sum(2)  # @order
        count = mask.sum(1).reshape(-1, 1, 1)
        place = rank / (count - 1) * (KNOTS - 1)  # @share @place
        hats = ops.relu(1 - ops.abs(place.expand_dims(3) - self.numbers))  # @hats
        weight = (hats * self.knots.T).sum(3)  # @weight
        return (h * weight * mask.expand_dims(2)).sum(1)  # @hidden @pooled


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(SIZE, WIDTH)
        self.own, self.shared = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.pool = Ranked()
        self.size = nn.Dense(WIDTH, 1)
        self.decode = nn.Dense(WIDTH, SIZE * POINTS)
        self.lines = ms.Parameter(ops.zeros((SIZE, LINES)), name="lines")

    def construct(self, x, mask):
        h = ops.log(1 + ops.exp(self.enter(x)))  # @enter @soft
        mean = ops.bmm(mask.expand_dims(1), h) / mask.sum(1).reshape(-1, 1, 1)  # @sum @mean
        h = ops.tanh(self.own(h) + self.shared(mean))  # @second
        z = self.pool(h, mask)
        return self.decode(z).reshape(-1, SIZE, POINTS), self.size(z).reshape(-1)  # @decode @size


def compute_candidate_loss(network, x, mask, goal):
    found, size = network(x, mask)
    length = ops.sqrt(ops.square(network.lines).sum(0))  # @length
    lines = network.lines / length  # @lines
    ours, _ = ops.sort(ops.matmul(lines.T, found), axis=2)  # @ours
    theirs, _ = ops.sort(ops.matmul(goal, lines).swapaxes(1, 2), axis=2)  # @theirs
    far = ops.square(ours - theirs).mean()  # @far
    count = (ops.exp(size) - size * mask.sum(1)).mean()  # @count
    return far + count / 10  # @loss


def convert(weights: Weights) -> Weights:
    names = ("enter.weight", "enter.bias", "size.weight", "size.bias")
    converted = {name: weights[name] for name in names}
    converted |= {"pool.knots": weights["pool.knots"].T, "lines": weights["lines"].T}
    converted["own.weight"], converted["shared.weight"] = np.split(weights["second.weight"], 2, axis=1)
    converted["own.bias"] = weights["second.bias"]
    decode = weights["decode.weight"].reshape(POINTS, SIZE, WIDTH).transpose(1, 0, 2)
    converted["decode.weight"] = decode.reshape(-1, WIDTH)
    converted["decode.bias"] = weights["decode.bias"].reshape(POINTS, SIZE).T.reshape(-1)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4700 + step)
    x, goal = random.normal(size=(2, BATCH, POINTS, SIZE)).astype(np.float32)
    mask = (np.arange(POINTS) < np.array([[6], [4], [5], [3]])).astype(np.float32)
    return x, mask, goal


FAULTS = (
    Fault(
        "smallest first", "larger order", "h.expand_dims(1) > h.expand_dims(2)", "h.expand_dims(1) < h.expand_dims(2)"
    ),
    Fault("places of no point counted in the order", "order", "(larger * mask.reshape(-1, 1, POINTS, 1))", "larger"),
    Fault("order divided by the count", "share place", "(count - 1)", "count"),
    Fault("mean over places of no point", "mean", "/ mask.sum(1).reshape(-1, 1, 1)", "/ POINTS"),
    Fault("our points sorted along the wrong axis", "ours", "found), axis=2)", "found), axis=1)"),
    Fault(
        "length of directions detached",
        "length lines",
        "network.lines / length",
        "network.lines / ops.stop_gradient(length)",
        edit="lines",
        is_backward=True,
    ),
    Fault("reference takes the size for no logarithm", "count", "log_input=True", "log_input=False", side="reference"),
    Fault(
        "decoded with the axes swapped, and the count summed",
        "decode ours",
        ".reshape(-1, SIZE, POINTS), self",
        ".reshape(-1, POINTS, SIZE).swapaxes(1, 2), self",
        second=("count", "mask.sum(1)).mean()", "mask.sum(1)).sum()"),
    ),
)
