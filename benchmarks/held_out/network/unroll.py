"""A head trained within the step by AdamW, written by hand: warm-up, clipping, two small batches, averaged weights."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ENTER, WIDTH, CLASSES, SMALL, INNER, WARM = 5, 6, 3, 4, 3, 2
BETA1, BETA2, EPSILON, DECAY, LIMIT, AVERAGE = 0.9, 0.95, 0.05, 0.1, 0.5, 0.6


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(ENTER, WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        self.rate_scale = torch.nn.Parameter(torch.ones(1))

    def embed(self, x):
        return torch.tanh(self.enter(x))  # @embed


def find_gradients(weight, bias, h, labels):
    """Of the mean cross entropy, written out: gradients of these pass on."""
    error = (torch.softmax(F.linear(h, weight, bias), dim=-1) - F.one_hot(labels, CLASSES)) / len(h)  # @chance @error
    return [error.t() @ h, error.sum(dim=0)]  # @gradient


class AdamW:
    def __init__(self, rate):
        self.rate, self.first, self.second = rate, [0.0, 0.0], [0.0, 0.0]

    def step(self, parameters, gradients, number):
        norm = torch.stack([one.pow(2).sum() for one in gradients]).sum().sqrt()  # @norm
        gradients = [one * torch.clamp(LIMIT / (norm + 1e-6), max=1.0) for one in gradients]  # @part @clip
        rate = self.rate * min(1.0, (number + 1) / WARM)  # @rate
        updated = []
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if parameter.ndim > 1:
                parameter = parameter * (1 - rate * DECAY)  # @decay
            self.first[place] = BETA1 * self.first[place] + (1 - BETA1) * gradient  # @first
            self.second[place] = BETA2 * self.second[place] + (1 - BETA2) * gradient**2  # @second
            mean = self.first[place] / (1 - BETA1 ** (number + 1))  # @mean
            root = (self.second[place] / (1 - BETA2 ** (number + 1))).sqrt()  # @square @root
            updated.append(parameter - rate * mean / (root + EPSILON))  # @epsilon @update
        return updated


def compute_reference_loss(network, x, labels, asked, answers):
    parameters = [network.head.weight, network.head.bias]
    average = parameters
    adam = AdamW(network.rate_scale * 0.3)  # @base_rate
    for number in range(INNER):
        total = [torch.zeros_like(one) for one in parameters]
        for part in range(2):
            rows = slice((2 * number + part) * SMALL, (2 * number + part + 1) * SMALL)
            found = find_gradients(*parameters, network.embed(x[rows]), labels[rows])
            total = [one + other / 2 for one, other in zip(total, found, strict=True)]  # @total
        parameters = adam.step(parameters, total, number)
        average = [
            AVERAGE * old + (1 - AVERAGE) * new for old, new in zip(average, parameters, strict=True)
        ]  # @average
    h = network.embed(asked)
    last = F.cross_entropy(F.linear(h, *parameters), answers)  # @last
    return F.cross_entropy(F.linear(h, *average), answers) + 0.3 * last  # @averaged @loss


class Candidate(nn.Cell):
    """The bias of the head is the last column of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Dense(ENTER, WIDTH)
        self.head = ms.Parameter(ops.zeros((CLASSES, WIDTH + 1)), name="head")
        self.rate = ms.Parameter(ops.ones((1,)), name="rate")
        decays = np.full((1, WIDTH + 1), DECAY)
        decays[:, WIDTH:] = 0  # @decays
        self.decays = ms.Tensor(decays, ms.float32)

    def construct(self, x):
        h = ops.tanh(self.enter(x))  # @embed
        return ops.cat((h, ops.ones((*h.shape[:-1], 1), h.dtype)), axis=-1)

    def train_head(self, inputs, goals):
        """The head after the last step, and its average over the steps."""
        head = average = self.head
        first, second = ops.zeros_like(head), ops.zeros_like(head)
        for number in range(INNER):
            h, goal = inputs[number], goals[number]
            error = (ops.softmax(ops.matmul(h, head.T)) - goal) / SMALL  # @chance @error
            each = ops.bmm(error.swapaxes(1, 2), h)  # @gradient
            gradient = each.mean(0)  # @total
            part = mint.clamp(LIMIT / (ops.sqrt(ops.square(gradient).sum()) + 1e-6), max=1.0)  # @norm @part
            gradient = gradient * part  # @clip
            rate = self.rate * (0.3 * min(1.0, (number + 1) / WARM))  # @base_rate @rate
            head = head - rate * self.decays * head  # @decay
            first = first + (1 - BETA1) * (gradient - first)  # @first
            second = BETA2 * second + (1 - BETA2) * ops.square(gradient)  # @second
            mean, square = first / (1 - BETA1 ** (number + 1)), second / (1 - BETA2 ** (number + 1))  # @mean @square
            root = ops.sqrt(square) + EPSILON  # @root @epsilon
            head = head - rate * mean / root  # @update
            average = average * AVERAGE + head * (1 - AVERAGE)  # @average
        return head, average


def compute_candidate_loss(network, x, labels, asked, answers):
    inputs = network(x).reshape(INNER, 2, SMALL, -1)
    goals = ops.one_hot(labels, CLASSES).astype(ms.float32).reshape(INNER, 2, SMALL, -1)
    head, average = network.train_head(inputs, goals)
    h = network(asked)
    last = ops.cross_entropy(ops.matmul(h, head.T), answers)  # @last
    return ops.cross_entropy(ops.matmul(h, average.T), answers) + 0.3 * last  # @averaged @loss


def convert(weights: Weights) -> Weights:
    converted = {name: weights[name] for name in ("enter.weight", "enter.bias")}
    converted["head"] = np.concatenate([weights["head.weight"], weights["head.bias"][:, None]], axis=1)
    return converted | {"rate": weights["rate_scale"]}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4800 + step)
    x, asked = random.normal(size=(2 * SMALL * INNER, ENTER)), random.normal(size=(6, ENTER))
    labels, answers = random.integers(CLASSES, size=len(x)), random.integers(CLASSES, size=6)
    return x.astype(np.float32), labels, asked.astype(np.float32), answers


FAULTS = (
    Fault(
        "decay added to the gradient",
        "decay first second",
        "head = head - rate * self.decays * head",
        "gradient = gradient + self.decays * head",
    ),
    Fault("decay of the bias too", "decay", "decays[:, WIDTH:] = 0", "decays[:, WIDTH:] = DECAY", edit="decays"),
    Fault(
        "moments not corrected at the start",
        "mean square root update",
        "first / (1 - BETA1 ** (number + 1)), second / (1 - BETA2 ** (number + 1))",
        "first, second",
    ),
    Fault("epsilon inside the root", "root epsilon", "ops.sqrt(square) + EPSILON", "ops.sqrt(square + EPSILON)"),
    Fault("rate of the step before", "rate", "(number + 1) / WARM", "number / WARM"),
    Fault(
        "small batches clipped one by one",
        "total norm",
        "each.mean(0)",
        "(each * mint.clamp(LIMIT / (ops.sqrt(ops.square(each).sum((1, 2), keepdims=True)) + 1e-6), max=1.0)).mean(0)",
    ),
    Fault(
        "second moment detached",
        "second",
        "ops.square(gradient)",
        "ops.square(ops.stop_gradient(gradient))",
        is_backward=True,
    ),
    Fault("reference adds small batches up", "total", "one + other / 2 for", "one + other for", side="reference"),
    Fault(
        "average moves too fast, and the last head weighs more",
        "average",
        "average * AVERAGE + head * (1 - AVERAGE)",
        "average * (1 - AVERAGE) + head * AVERAGE",
        second=("loss", "0.3 * last", "last"),
    ),
)
