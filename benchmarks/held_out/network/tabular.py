"""Tables with holes: features chosen by sparse masks, by sorting or by pairs; norms of small batches, quantiles."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NUMBERS, KINDS, PIECE, BINS, WIDTH, ASK, CLASSES, STEPS, BATCH, SMALL = 4, 5, 2, 6, 4, 3, 3, 2, 24, 12
ENTER, QUANTILES, GAMMA, SPARSE, KEPT, SMOOTH = NUMBERS + 2 * PIECE, (0.1, 0.5, 0.8), 1.3, 0.05, 0.9, 0.1


class Sparsemax(torch.autograd.Function):
    """The nearest point of the simplex."""

    @staticmethod
    def forward(ctx, z):
        ordered, _ = z.sort(dim=-1, descending=True)
        sums = ordered.cumsum(dim=-1) - 1
        rank = torch.arange(1, z.shape[-1] + 1)
        count = (rank * ordered > sums).sum(dim=-1, keepdim=True)
        out = (z - sums.gather(-1, count - 1) / count).clamp(min=0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        is_in = (ctx.saved_tensors[0] > 0).float()
        mean = (gradient * is_in).sum(dim=-1, keepdim=True) / is_in.sum(dim=-1, keepdim=True)
        return is_in * (gradient - mean)


class SmallNorm(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(width, eps=1e-3, track_running_stats=False)

    def forward(self, x):
        return torch.cat([self.bn(part) for part in x.chunk(BATCH // SMALL)])  # @norm @parts


class Features(torch.nn.Module):
    """A layer that all steps share and one of its own, with norms of its own, and gates."""

    def __init__(self, shared) -> None:
        super().__init__()
        own = torch.nn.Linear(WIDTH + ASK, 2 * (WIDTH + ASK), bias=False)
        self.layers = torch.nn.ModuleList([shared, own])
        self.norms = torch.nn.ModuleList([SmallNorm(2 * (WIDTH + ASK)) for _ in range(2)])

    def forward(self, x):
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            h = F.glu(norm(layer(x)))  # @layer @halves @glu
            x = h if number == 0 else (x + h) * 0.5**0.5  # @added @shrunk
        return x.split([WIDTH, ASK], dim=1)  # @split


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fill = torch.nn.Parameter(torch.zeros(NUMBERS))
        self.kinds, self.bins = torch.nn.Embedding(KINDS, PIECE), torch.nn.Embedding(BINS, PIECE)
        self.bn = torch.nn.BatchNorm1d(ENTER, track_running_stats=False)
        first = torch.nn.Linear(ENTER, 2 * (WIDTH + ASK), bias=False)
        self.features = torch.nn.ModuleList([Features(first) for _ in range(STEPS + 1)])
        self.asks = torch.nn.ModuleList([torch.nn.Linear(ASK, ENTER, bias=False) for _ in range(STEPS)])
        self.ask_norms = torch.nn.ModuleList([SmallNorm(ENTER) for _ in range(STEPS)])
        self.classes, self.quantiles = torch.nn.Linear(WIDTH, CLASSES), torch.nn.Linear(WIDTH, len(QUANTILES))
        self.register_buffer("counts", torch.ones(CLASSES), persistent=False)

    def enter(self, numbers, kinds):
        numbers = torch.where(numbers.isnan(), self.fill, numbers)  # @filled
        bins = (torch.floor(2 * numbers[:, 0]) + BINS // 2).clamp(0, BINS - 1).long()  # @floor @binned
        return self.bn(torch.cat([numbers, self.kinds(kinds), self.bins(bins)], dim=1))  # @kinds @bins @joined @bn

    def forward(self, numbers, kinds):
        x = self.enter(numbers, kinds)
        _, ask = self.features[0](x)
        prior, total, unsure = torch.ones_like(x), 0.0, 0.0  # @prior_begin
        for number in range(STEPS):
            score = self.ask_norms[number](self.asks[number](ask))  # @ask
            mask = Sparsemax.apply(score * prior)  # @weighed @count @sums @mask
            unsure = unsure + (1 - mask.square().sum(dim=1)).mean() / STEPS  # @unsure
            prior = prior * (GAMMA - mask)  # @prior
            out, ask = self.features[number + 1](x * mask)  # @masked
            total = total + F.relu(out)  # @total
        return self.classes(total), self.quantiles(total), unsure  # @classes @quantiles


def compute_reference_loss(network, numbers, kinds, labels, wanted):
    logits, found, unsure = network(numbers, kinds)
    network.counts = KEPT * network.counts + torch.bincount(labels, minlength=CLASSES)  # @counted
    weight = network.counts.sum() / (CLASSES * network.counts)  # @weight
    loss = F.cross_entropy(logits, labels, weight, label_smoothing=SMOOTH)  # @smooth @weighted @class_loss
    error, levels = wanted.unsqueeze(1) - found, torch.tensor(QUANTILES)  # @error
    pinball = torch.maximum(levels * error, (levels - 1) * error).sum(dim=1).mean()  # @pinball @mean
    return loss + pinball + SPARSE * unsure  # @loss


class Normal(nn.Cell):
    def __init__(self, width: int, count: int = 1) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((count, width)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((count, width)), name="beta")

    def construct(self, x, number=0):
        parts = x.reshape(-1, SMALL, x.shape[-1])  # @parts
        parts = parts - parts.mean(1, keep_dims=True)  # @norm
        variance = ops.square(parts).sum(1, keepdims=True) / SMALL  # @norm @variance
        parts = parts / ops.sqrt(variance + 1e-3)  # @norm @epsilon
        return parts.reshape(x.shape) * self.gamma[number] + self.beta[number]  # @norm


def project(z):
    """Sparsemax without sorting: how many are larger, and their sum, by comparing all pairs."""
    is_above = (z.expand_dims(-2) >= z.expand_dims(-1)).astype(ms.float32)  # @above
    sums = (is_above * z.expand_dims(-2)).sum(-1)  # @sums
    is_in = ops.stop_gradient((1 + is_above.sum(-1) * z > sums).astype(ms.float32))  # @in @count
    least = ((is_in * z).sum(-1, keepdims=True) - 1) / is_in.sum(-1, keepdims=True)  # @sums @least
    return ops.relu(z - least)  # @mask


class Layers(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Dense(WIDTH + ASK, 2 * (WIDTH + ASK), has_bias=False)
        self.norms = Normal(2 * (WIDTH + ASK), 2)

    def construct(self, x, first):
        x = self.gate(self.norms(first(x), 0))  # @layer
        x = (x + self.gate(self.norms(self.own(x), 1))) / 2**0.5  # @layer @added @shrunk
        return x[:, :WIDTH], x[:, WIDTH:]  # @split

    def gate(self, x):
        left, right = mint.chunk(x, 2, dim=1)  # @halves
        return left * ops.sigmoid(right)  # @glu


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fill = ms.Parameter(ops.zeros((NUMBERS,)), name="fill")
        self.kinds = ms.Parameter(ops.zeros((KINDS, PIECE)), name="kinds")
        self.bins = ms.Parameter(ops.zeros((BINS, PIECE)), name="bins")
        self.bn = nn.BatchNorm1d(ENTER, use_batch_statistics=True)  # @bn_made
        self.first = nn.Dense(ENTER, 2 * (WIDTH + ASK), has_bias=False)
        self.features = nn.CellList([Layers() for _ in range(STEPS + 1)])
        self.asks = nn.CellList([nn.Dense(ASK, ENTER, has_bias=False) for _ in range(STEPS)])
        self.ask_norms = Normal(ENTER, STEPS)
        self.heads = nn.Dense(WIDTH, CLASSES + len(QUANTILES))
        self.counts = ops.ones((CLASSES,), ms.float32)

    def enter(self, numbers, kinds):
        is_hole = ops.isnan(numbers).astype(ms.float32)  # @hole
        numbers = ops.nan_to_num(numbers, 0.0) * (1 - is_hole) + self.fill * is_hole  # @filled
        bins = ops.floor(numbers[:, 0] * 2).astype(ms.int32) + BINS // 2  # @floor
        bins = ops.clamp(bins, 0, BINS - 1)  # @binned
        return ops.cat((numbers, self.kinds[kinds], ops.gather(self.bins, bins, 0)), axis=1)  # @kinds @bins @joined

    def construct(self, numbers, kinds):
        x = self.bn(self.enter(numbers, kinds))  # @bn
        out, ask = self.features[0](x, self.first)
        outs, masks, prior = [], [], 1.0  # @prior_begin
        for number in range(STEPS):
            score = self.ask_norms(self.asks[number](ask), number)  # @ask
            mask = project(score * prior)  # @weighed
            prior = (GAMMA - mask) * prior  # @prior
            out, ask = self.features[number + 1](mask * x, self.first)  # @masked
            outs.append(out)
            masks.append(mask)
        mask = ops.stack(masks)
        unsure = 1 - (mask * mask).sum(-1).mean()  # @unsure
        total = ops.relu(ops.stack(outs)).sum(0)  # @total
        found = self.heads(total)  # @classes @quantiles
        return found[:, :CLASSES], found[:, CLASSES:], unsure  # @classes @quantiles @head_parts


def compute_candidate_loss(network, numbers, kinds, labels, wanted):
    logits, found, unsure = network(numbers, kinds)
    goal = ops.one_hot(labels, CLASSES).astype(ms.float32)  # @goal
    network.counts = network.counts * KEPT + goal.sum(0)  # @counted
    weight = network.counts.mean() / network.counts  # @weight
    smooth = (1 - SMOOTH) * goal + SMOOTH / CLASSES  # @smooth
    losses = (smooth * weight * -ops.log_softmax(logits, -1)).sum(-1)  # @weighted @class_loss
    loss = losses.sum() / (goal * weight).sum()  # @weighted @class_loss @divided
    error = wanted.expand_dims(1) - found  # @error
    levels = ms.Tensor(QUANTILES, ms.float32)
    pinball = levels * ops.relu(error) + (1 - levels) * ops.relu(-error)  # @pinball
    return loss + pinball.sum() / len(wanted) + SPARSE * unsure  # @mean @loss


def convert(weights: Weights) -> Weights:
    converted = {"fill": weights["fill"], "kinds": weights["kinds.weight"], "bins": weights["bins.weight"]}
    converted |= {"bn.gamma": weights["bn.weight"], "bn.beta": weights["bn.bias"]}
    converted |= {"bn.moving_mean": np.zeros(ENTER, np.float32), "bn.moving_variance": np.ones(ENTER, np.float32)}
    converted["first.weight"] = weights["features.0.layers.0.weight"]
    for word, name in (("weight", "gamma"), ("bias", "beta")):
        for number in range(STEPS + 1):
            path = f"features.{number}"
            converted[f"{path}.own.weight"] = weights[f"{path}.layers.1.weight"]
            rows = [weights[f"{path}.norms.{place}.bn.{word}"] for place in (0, 1)]  # @load_norms
            converted[f"{path}.norms.{name}"] = np.stack(rows)
        rows = [weights[f"ask_norms.{number}.bn.{word}"] for number in range(STEPS)]
        converted[f"ask_norms.{name}"] = np.stack(rows)
        converted[f"heads.{word}"] = np.concatenate([weights[f"{path}.{word}"] for path in ("classes", "quantiles")])
    return converted | {f"asks.{number}.weight": weights[f"asks.{number}.weight"] for number in range(STEPS)}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(6500 + step)
    numbers = random.normal(size=(BATCH, NUMBERS)).astype(np.float32)
    wanted = (numbers[:, 0] + 0.3 * random.normal(size=BATCH)).astype(np.float32)
    numbers[random.random(numbers.shape) < 0.15] = np.nan
    labels = np.minimum(random.integers(CLASSES + 2, size=BATCH), CLASSES - 1)
    return numbers, random.integers(KINDS, size=BATCH), labels, wanted


FAULTS = (
    Fault("holes stay nothing", "filled", " + self.fill * is_hole", ""),
    Fault(
        "bins cut, not floored",
        "floor",
        "ops.floor(numbers[:, 0] * 2).astype(ms.int32)",
        "(numbers[:, 0] * 2).astype(ms.int32)",
    ),
    Fault("bins off by one", "floor binned bins", "+ BINS // 2", "+ BINS // 2 - 1"),
    Fault(
        "kinds after the bins",
        "joined bn",
        "self.kinds[kinds], ops.gather(self.bins, bins, 0))",
        "ops.gather(self.bins, bins, 0), self.kinds[kinds])",
    ),
    Fault(
        "norm of the whole batch", "parts norm", "x.reshape(-1, SMALL, x.shape[-1])", "x.reshape(1, -1, x.shape[-1])"
    ),
    Fault(
        "small batches take every second row",
        "parts norm",
        "x.reshape(-1, SMALL, x.shape[-1])",
        "x.reshape(SMALL, -1, x.shape[-1]).swapaxes(0, 1)",
    ),
    Fault("variance is unbiased", "norm", "keepdims=True) / SMALL", "keepdims=True) / (SMALL - 1)"),
    Fault("gate on the other half", "halves glu", "left, right =", "right, left ="),
    Fault(
        "sum of layers not shrunk",
        "shrunk added",
        "self.gate(self.norms(self.own(x), 1))) / 2**0.5",
        "self.gate(self.norms(self.own(x), 1)))",
    ),
    Fault("mask before the prior", "weighed mask", "project(score * prior)", "project(score)"),
    Fault("prior of the last mask alone", "prior", "(GAMMA - mask) * prior", "(GAMMA - mask)", has_effect=False),
    Fault("prior not relaxed", "prior", "(GAMMA - mask) * prior", "(1 - mask) * prior"),
    Fault(
        "least passes no gradient",
        "mask least sums",
        "ops.relu(z - least)",
        "ops.relu(z - ops.stop_gradient(least))",
        is_backward=True,
    ),
    Fault(
        "masks pass no gradient to the features",
        "masked mask",
        "(mask * x,",
        "(ops.stop_gradient(mask) * x,",
        is_backward=True,
    ),
    Fault("features not masked", "masked layer", "(mask * x,", "(x,"),
    Fault(
        "counts of the last batch alone",
        "counted weight",
        "network.counts * KEPT",
        "ops.ones_like(network.counts) * KEPT",
        steps=2,
        first_step=1,
    ),
    Fault(
        "counts divided whole",
        "weight",
        "network.counts.mean() / network.counts",
        "network.counts.mean() // network.counts",
    ),
    Fault("mean over the batch, not the weights", "divided class_loss", "/ (goal * weight).sum()", "/ len(labels)"),
    Fault(
        "quantiles the other way round",
        "pinball",
        "levels * ops.relu(error) + (1 - levels) * ops.relu(-error)",
        "(1 - levels) * ops.relu(error) + levels * ops.relu(-error)",
    ),
    Fault(
        "norms of layers in another order",
        "norm",
        "for place in (0, 1)",
        "for place in (1, 0)",
        edit="load_norms",
        parameter="norms",
    ),
    Fault(
        "reference smooths nothing",
        "smooth class_loss",
        "label_smoothing=SMOOTH",
        "label_smoothing=0.0",
        side="reference",
    ),
    Fault(
        "no relu before the sum, and quantiles by the mean",
        "total",
        "ops.relu(ops.stack(outs)).sum(0)",
        "ops.stack(outs).sum(0)",
        second=("mean", "pinball.sum() / len(wanted)", "pinball.mean()"),
    ),
)
