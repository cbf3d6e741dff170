"""Depthwise blocks with a response norm, a scale of each layer and mixed labels; channels are last in the reference."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, WIDTHS, HIGH, CLASSES, BATCH, KEEP = 3, (6, 10), 12, 5, 4, 0.75


class Response(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.zeros(1, 1, 1, width))
        self.beta = torch.nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, x):
        size = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)  # @size
        share = size / (size.mean(dim=-1, keepdim=True) + 1e-6)  # @share
        return self.gamma * (x * share) + self.beta + x  # @response


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = torch.nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = torch.nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = torch.nn.Linear(width, 3 * width), torch.nn.Linear(3 * width, width)
        self.grn = Response(3 * width)
        self.scale = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x, kept):
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))  # @depth @norm
        h = self.grn(F.gelu(self.up(h)))  # @up @gelu
        h = self.scale * self.down(h)  # @down @scaled
        h = h.permute(0, 3, 1, 2) * kept.div(KEEP).view(-1, 1, 1, 1)  # @dropped
        return x + h  # @add


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(CHANNELS, WIDTHS[0], 2, stride=2)
        self.stem_norm = torch.nn.LayerNorm(WIDTHS[0], eps=1e-6)
        self.blocks = torch.nn.ModuleList([Block(WIDTHS[0]), Block(WIDTHS[0]), Block(WIDTHS[1])])
        self.less_norm = torch.nn.LayerNorm(WIDTHS[0], eps=1e-6)
        self.less = torch.nn.Conv2d(*WIDTHS, 2, stride=2)
        self.norm = torch.nn.LayerNorm(WIDTHS[1], eps=1e-6)
        self.head = torch.nn.Linear(WIDTHS[1], CLASSES)

    def forward(self, x, kept):
        x = self.stem_norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # @stem @stem_norm
        for number, block in enumerate(self.blocks):
            if number == 2:
                x = self.less_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # @less_norm
                x = self.less(x)  # @less
            x = block(x, kept[number])  # @picked
        return self.head(self.norm(x.mean(dim=(-2, -1))))  # @pool @last_norm @head


def compute_reference_loss(network, x, labels, kept, share):
    x = share * x + (1 - share) * x.flip(0)  # @mixed
    logits = network(x, kept)
    first, other = F.cross_entropy(logits, labels), F.cross_entropy(logits, labels.flip(0))  # @goal @losses
    return share * first + (1 - share) * other  # @goal @loss


class Norm(nn.Cell):
    """Over the channels, which are the second axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((width, 1, 1)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((width, 1, 1)), name="beta")

    def construct(self, x):
        mean = x.mean(1, keep_dims=True)  # @norm @stem_norm @less_norm
        spread = ops.square(x - mean).mean(1, keep_dims=True)  # @norm @stem_norm @less_norm
        x = (x - mean) / ops.sqrt(spread + 1e-6)  # @norm @stem_norm @less_norm @divided
        return x * self.gamma + self.beta  # @norm @stem_norm @less_norm


class Layer(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 5, group=width, pad_mode="same", has_bias=True)
        self.norm = Norm(width)
        self.up = nn.Conv2d(width, 3 * width, 1, has_bias=True)
        self.act = nn.GELU(approximate=False)  # @gelu_made
        self.gamma = ms.Parameter(ops.zeros((3 * width,)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((3 * width,)), name="beta")
        self.down = nn.Conv2d(3 * width, width, 1, has_bias=True)
        self.scale = ms.Parameter(ops.zeros((width, 1, 1)), name="scale")

    def respond(self, x):
        size = ops.sqrt((x * x).sum((2, 3)))  # @size
        share = size / (size.mean(1, keep_dims=True) + 1e-6)  # @share
        factor = (1 + self.gamma * share).expand_dims(-1).expand_dims(-1)  # @factor @response
        return x * factor + self.beta.reshape(-1, 1, 1)  # @response

    def construct(self, x, kept):
        h = self.norm(self.depth(x))  # @depth
        h = self.respond(self.act(self.up(h)))  # @up @gelu
        h = self.down(h) * self.scale  # @down @scaled
        kept = kept.reshape(-1, 1, 1, 1) / KEEP  # @dropped
        return x + h * kept  # @dropped @add


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, WIDTHS[0], 2, stride=2, pad_mode="valid", has_bias=True)
        self.stem_norm, self.less_norm = Norm(WIDTHS[0]), Norm(WIDTHS[0])
        self.blocks = nn.CellList([Layer(WIDTHS[0]), Layer(WIDTHS[0]), Layer(WIDTHS[1])])
        self.less = nn.Dense(4 * WIDTHS[0], WIDTHS[1])
        self.norm = nn.LayerNorm((WIDTHS[1],), epsilon=1e-6)  # @made
        self.head = nn.Dense(WIDTHS[1], CLASSES)

    def halve(self, x):
        """A convolution whose steps are as long as its kernel, as a product with each patch."""
        batch, width, high, wide = x.shape
        x = x.reshape(batch, width, high // 2, 2, wide // 2, 2)
        patches = x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, high // 2, wide // 2, -1)  # @patches
        return self.less(patches).transpose(0, 3, 1, 2)  # @less

    def construct(self, x, kept):
        x = self.stem_norm(self.stem(x))  # @stem
        for number, block in enumerate(self.blocks):
            if number == 2:
                x = self.halve(self.less_norm(x))
            x = block(x, kept[number])  # @picked
        h = x.reshape(len(x), WIDTHS[1], -1).mean(-1)  # @pool
        return self.head(self.norm(h))  # @last_norm @head


def compute_candidate_loss(network, x, labels, kept, share):
    x = x * share + ops.flip(x, (0,)) * (1 - share)  # @mixed
    chance = ops.log_softmax(network(x, kept), -1)  # @losses
    sure = ops.one_hot(labels, CLASSES).astype(ms.float32)
    goal = sure * share + ops.flip(sure, (0,)) * (1 - share)  # @goal
    return -(goal * chance).sum(-1).mean()  # @losses @loss


def convert(weights: Weights) -> Weights:
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path.endswith("norm") and path != "norm":
            converted[f"{path}.{'gamma' if word == 'weight' else 'beta'}"] = array.reshape(-1, 1, 1)
        elif path == "norm":
            converted[f"norm.{'gamma' if word == 'weight' else 'beta'}"] = array
        elif path.endswith("grn"):
            converted[name.replace("grn.", "")] = array.reshape(-1)
        elif name.endswith(("up.weight", "down.weight")):
            converted[name] = array[:, :, None, None]
        elif word == "scale":
            converted[name] = array.reshape(-1, 1, 1)
        else:
            converted[name] = array
    kernel = weights["less.weight"]
    converted["less.weight"] = kernel.reshape(WIDTHS[1], -1)  # @load
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(5100 + step)
    x = random.normal(size=(BATCH, CHANNELS, HIGH, HIGH)).astype(np.float32)
    kept = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0]], np.float32)
    return x, random.integers(CLASSES, size=BATCH), np.roll(kept, step, axis=1), np.array(0.7, np.float32)


FAULTS = (
    Fault("response averaged over the batch", "share", "size.mean(1, keep_dims=True)", "size.mean(0, keep_dims=True)"),
    Fault("response without its input", "factor response", "1 + self.gamma * share", "self.gamma * share"),
    Fault("size of the response over the channels too", "size", ".sum((2, 3))", ".sum((1, 2, 3)).expand_dims(1)"),
    Fault("gelu by the tangent", "gelu", "approximate=False", "approximate=True", edit="gelu_made"),
    Fault("what is kept is not divided", "dropped", " / KEEP", ""),
    Fault("the first row of what is kept for all", "picked dropped", "kept[number]", "kept[0]"),
    Fault(
        "norm divides by the spread without a root",
        "norm stem_norm less_norm",
        "ops.sqrt(spread + 1e-6)",
        "(spread + 1e-6)",
    ),
    Fault("channels last in the patches", "patches less", "(0, 2, 4, 1, 3, 5)", "(0, 2, 4, 3, 5, 1)"),
    Fault(
        "size passes no gradient", "share size", "share = size /", "share = ops.stop_gradient(size) /", is_backward=True
    ),
    Fault("epsilon of the last norm", "last_norm", "epsilon=1e-6", "epsilon=1e-2", edit="made"),
    Fault(
        "kernel of the halving transposed",
        "less",
        "kernel.reshape(",
        "kernel.swapaxes(2, 3).reshape(",
        edit="load",
        parameter="less.weight",
    ),
    Fault("reference mixes labels the other way", "loss", "share * first", "(1 - share) * first", side="reference"),
    Fault(
        "not scaled, and other labels not mixed",
        "scaled",
        "self.down(h) * self.scale",
        "self.down(h)",
        second=("goal", "ops.flip(sure, (0,))", "sure"),
    ),
)
