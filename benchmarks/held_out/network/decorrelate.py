"""Two views of a round signal that should vary but not correlate, and a probe that the step trains by AdamW."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ENTER, TIME, WIDTH, GROWN, CLASSES, BATCH, INNER, NONE = 3, 7, 6, 8, 4, 10, 2, -1
RATE, BETAS, EPSILON, DECAY, LIMIT = 0.2, (0.8, 0.95), 0.03, 0.3, 0.2
SAME, VARY, APART = 5.0, 4.0, 1.0


def make_probe():
    return (0.5 * np.random.default_rng(66).normal(size=(CLASSES, WIDTH))).astype(np.float32)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(ENTER, WIDTH, 3, padding=1, padding_mode="circular")
        self.bn1, self.bn2 = torch.nn.BatchNorm1d(WIDTH), torch.nn.BatchNorm1d(GROWN)
        self.expand1, self.expand2 = torch.nn.Linear(WIDTH, GROWN, bias=False), torch.nn.Linear(GROWN, GROWN)
        self.probe = [torch.from_numpy(make_probe()), torch.zeros(CLASSES)]
        decays = (DECAY, 0.0)  # @decays
        groups = [{"params": one, "weight_decay": decay} for one, decay in zip(self.probe, decays, strict=True)]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv(x))).mean(dim=2)  # @around @conv @bn1 @relu1 @pool
        return h, self.expand2(F.relu(self.bn2(self.expand1(h))))  # @expand1 @bn2 @relu2 @expand2

    @torch.no_grad()
    def train_probe(self, h, labels):
        """On the labels that are known; the network learns nothing from it."""
        weight, bias = self.probe
        is_known = labels != NONE
        h, goal = h[is_known], F.one_hot(labels[is_known], CLASSES)  # @known @goal
        for _ in range(INNER):
            error = (F.linear(h, weight, bias).softmax(dim=-1) - goal) / len(h)  # @probe @chance @probe_error
            weight.grad, bias.grad = error.t() @ h, error.sum(dim=0)  # @gradient
            torch.nn.utils.clip_grad_norm_(self.probe, LIMIT)  # @norm @part @clip
            self.optimizer.step()  # @decay @first @second @root @mean @update


def separate(z):
    """How much the numbers of a batch do not vary, and how much they vary together."""
    spread = torch.sqrt(z.var(dim=0) + 1e-4)  # @var @spread
    cov = torch.cov(z.t())  # @centred @cov
    apart = cov.flatten()[:-1].view(GROWN - 1, GROWN + 1)[:, 1:].square().sum() / GROWN  # @off @apart
    return F.relu(1 - spread).mean(), apart  # @hinge


def compute_reference_loss(network, first, second, labels, step):
    (h1, z1), (h2, z2) = network(first), network(second)
    (vary1, apart1), (vary2, apart2) = separate(z1), separate(z2)
    loss = SAME * F.mse_loss(z1, z2) + VARY * (vary1 + vary2) / 2  # @same @vary
    loss = loss + APART * min(1.0, (step + 1) / 2) * (apart1 + apart2)  # @ramp
    network.train_probe(h1, labels)
    return loss + F.cross_entropy(F.linear(h2, *network.probe), labels, ignore_index=NONE)  # @logits @chosen @loss


class Normal(nn.Cell):
    """A batch norm of each view by itself; views come first and channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((width,)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((width,)), name="beta")

    def construct(self, x):
        axes = tuple(range(1, x.ndim - 1))  # @axes
        mean = x.mean(axes, keep_dims=True)  # @bn1 @bn2 @means
        x = x - mean  # @bn1 @bn2
        deviation = ops.sqrt(ops.square(x).mean(axes, keep_dims=True) + 1e-5)  # @bn1 @bn2 @deviation
        return x / deviation * self.gamma + self.beta  # @bn1 @bn2 @scaled


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1, self.bn2 = nn.Dense(3 * ENTER, WIDTH), Normal(WIDTH), Normal(GROWN)
        self.expand1, self.expand2 = nn.Dense(WIDTH, GROWN, has_bias=False), nn.Dense(GROWN, GROWN)
        self.weight, self.bias = ms.Tensor(make_probe()), ops.zeros((CLASSES,), ms.float32)
        near = (np.arange(TIME)[:, None] + np.arange(-1, 2)) % TIME  # @near_made
        self.near = ms.Tensor(near, ms.int32)
        self.moments, self.number = [0.0, 0.0, 0.0, 0.0], 0

    def construct(self, x):
        x = x.swapaxes(2, 3)
        around = ops.gather(x, self.near, 2).reshape(2, BATCH, TIME, -1)  # @around
        h = ops.relu(self.bn1(self.conv(around))).mean(2)  # @conv @relu1 @pool
        return h, self.expand2(ops.relu(self.bn2(self.expand1(h))))  # @expand1 @relu2 @expand2

    def train_probe(self, h, labels):
        known = (labels != NONE).astype(ms.float32).expand_dims(1)  # @known
        goal = ops.one_hot(labels, CLASSES).astype(ms.float32)  # @goal
        for _ in range(INNER):
            self.number += 1  # @numbered
            chance = ops.softmax(ops.matmul(h, self.weight.T) + self.bias, -1)  # @probe @chance
            error = (chance - goal) * known / known.sum()  # @known @probe_error
            by_weight, by_bias = ops.matmul(error.T, h), error.sum(0)  # @gradient
            norm = ops.sqrt(ops.square(by_weight).sum() + ops.square(by_bias).sum())  # @norm
            part = mint.clamp(LIMIT / (norm + 1e-6), max=1.0)  # @part
            self.weight = self.weight * (1 - RATE * DECAY)  # @decay
            self.weight = self.weight - self.move(0, by_weight * part)  # @clip @update
            self.bias = self.bias - self.move(2, by_bias * part)  # @clip @update

    def move(self, place, gradient):
        first = BETAS[0] * self.moments[place] + (1 - BETAS[0]) * gradient  # @first
        second = BETAS[1] * self.moments[place + 1] + (1 - BETAS[1]) * gradient * gradient  # @second
        self.moments[place : place + 2] = first, second  # @kept
        root = ops.sqrt(second / (1 - BETAS[1] ** self.number)) + EPSILON  # @root
        return RATE * (first / (1 - BETAS[0] ** self.number)) / root  # @mean @update


def compute_candidate_loss(network, first, second, labels, step):
    h, z = network(ops.stack((first, second)))
    loss = SAME * ops.square(z[0] - z[1]).mean()  # @same
    z = z - z.mean(1, keep_dims=True)  # @centred
    cov = ops.bmm(z.swapaxes(1, 2), z) / (BATCH - 1)  # @cov
    own = ops.diagonal(cov, 0, 1, 2)  # @var
    loss = loss + VARY * ops.relu(1 - ops.sqrt(own + 1e-4)).mean()  # @spread @hinge @vary
    off = cov * (1 - ops.eye(GROWN, GROWN, ms.float32))  # @off
    apart = ops.square(off).sum() / GROWN  # @apart
    loss = loss + (APART / 2 if step == 0 else APART) * apart  # @ramp
    network.train_probe(ops.stop_gradient(h[0]), labels)  # @trained
    logits = ops.matmul(h[1], network.weight.T) + network.bias  # @logits
    return loss + ops.cross_entropy(logits, labels, ignore_index=NONE)  # @chosen @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path.startswith("bn"):
            if not word.startswith("running"):
                converted[f"{path}.{'gamma' if word == 'weight' else 'beta'}"] = array
        else:
            converted[name] = array
    converted["conv.weight"] = weights["conv.weight"].transpose(0, 2, 1).reshape(WIDTH, -1)  # @load
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(6600 + step)
    signal = random.normal(size=(BATCH, ENTER, TIME))
    first, second = (signal + 0.5 * random.normal(size=signal.shape) for _ in range(2))
    labels = random.integers(CLASSES, size=BATCH)
    labels[[1, 4, 5]] = NONE
    return first.astype(np.float32), second.astype(np.float32), labels


FAULTS = (
    Fault("moments not kept", "first second", "self.moments[place : place + 2] =", "_ =", edit="kept"),
    Fault("edges repeated, not wrapped", "around conv", ") % TIME", ").clip(0, TIME - 1)", edit="near_made"),
    Fault(
        "neighbours one to the right",
        "around conv",
        "np.arange(-1, 2)",
        "np.arange(3)",
        edit="near_made",
        has_effect=False,
    ),
    Fault(
        "decay through the moments",
        "decay clip first",
        "self.weight = self.weight * (1 - RATE * DECAY)",
        "by_weight = by_weight + DECAY * self.weight",
    ),
    Fault(
        "kernel with taps after channels",
        "conv",
        ".transpose(0, 2, 1).reshape(WIDTH, -1)",
        ".reshape(WIDTH, -1)",
        edit="load",
        parameter="conv.weight",
    ),
    Fault("norm over both views", "bn1 bn2", "range(1, x.ndim - 1)", "range(0, x.ndim - 1)", edit="axes"),
    Fault(
        "deviation passes no gradient",
        "bn1 bn2 scaled",
        "x / deviation *",
        "x / ops.stop_gradient(deviation) *",
        edit="scaled",
        is_backward=True,
    ),
    Fault("covariance is biased", "cov", "/ (BATCH - 1)", "/ BATCH"),
    Fault(
        "covariance of numbers that are not centred", "centred cov", "z = z - z.mean(1, keep_dims=True)", "z = z * 1"
    ),
    Fault("variances count as covariances", "off apart", "cov * (1 - ops.eye(GROWN, GROWN, ms.float32))", "cov * 1"),
    Fault("variance for deviation", "spread hinge", "ops.sqrt(own + 1e-4)", "(own + 1e-4)"),
    Fault("ramp goes on too late", "ramp", "if step == 0", "if step <= 1", steps=2, first_step=1),
    Fault(
        "probe trains the network",
        "trained probe gradient pool logits",
        "ops.stop_gradient(h[0])",
        "h[0]",
        is_backward=True,
    ),
    Fault(
        "probe trained on the other view",
        "trained probe gradient",
        "ops.stop_gradient(h[0])",
        "ops.stop_gradient(h[1])",
    ),
    Fault(
        "mean over all labels, undone by the clipping",
        "probe_error",
        "* known / known.sum()",
        "* known / BATCH",
        has_effect=False,
    ),
    Fault("norm of one gradient alone", "norm part", " + ops.square(by_bias).sum())", ")"),
    Fault("not clipped", "part clip", "mint.clamp(LIMIT / (norm + 1e-6), max=1.0)", "ops.ones_like(norm)"),
    Fault("decay without the rate", "decay", "(1 - RATE * DECAY)", "(1 - DECAY)"),
    Fault(
        "epsilon inside the root",
        "root",
        "ops.sqrt(second / (1 - BETAS[1] ** self.number)) + EPSILON",
        "ops.sqrt(second / (1 - BETAS[1] ** self.number) + EPSILON)",
    ),
    Fault("second moment not corrected", "root", "second / (1 - BETAS[1] ** self.number)", "second"),
    Fault(
        "first moment by the other beta",
        "first",
        "BETAS[0] * self.moments[place] + (1 - BETAS[0]) * gradient",
        "BETAS[1] * self.moments[place] + (1 - BETAS[1]) * gradient",
    ),
    Fault(
        "number of moves begins again",
        "root mean",
        "self.number += 1",
        "self.number = self.number % INNER + 1",
        edit="numbered",
        steps=2,
        first_step=1,
    ),
    Fault(
        "reference decays the bias",
        "decay",
        "(DECAY, 0.0)",
        "(DECAY, DECAY)",
        edit="decays",
        side="reference",
    ),
    Fault(
        "reference with a sum of squares",
        "same",
        "F.mse_loss(z1, z2)",
        'F.mse_loss(z1, z2, reduction="sum")',
        side="reference",
    ),
    Fault(
        "one view varies alone, and the probe's bias left out",
        "hinge vary",
        ".mean()  #",
        "[0].mean()  #",
        edit="vary",
        second=("logits", " + network.bias", ""),
    ),
)
