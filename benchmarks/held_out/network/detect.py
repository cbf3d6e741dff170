"""A detector of one stage with two levels: boxes picked by index in the reference, weighted by masks in the port."""

from __future__ import annotations

import mindspore
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, WIDTH, CLASSES, SHAPES = 16, 8, 3, ((2.0, 2.5), (3.5, 1.5))
STRIDES, KINDS, CENTRE, EXTENT, ALPHA, GAMMA = (2, 4), len(SHAPES), 0.1, 0.2, 0.25, 2.0


def list_anchors():
    """Centre and extent of each; the shape changes fastest, then the column."""
    found = []
    for stride in STRIDES:
        centre = (torch.arange(SIDE // stride) + 0.5) * stride  # @anchors
        row, column, _ = torch.meshgrid(centre, centre, torch.zeros(KINDS), indexing="ij")
        extent = (torch.tensor(SHAPES) * stride).expand(*row.shape, 2)
        found.append(torch.cat([torch.stack([column, row], dim=-1), extent], dim=-1).flatten(0, 2))
    return torch.cat(found)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine = torch.nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.coarse = torch.nn.Conv2d(WIDTH, 12, 3, stride=2, padding=1)
        self.side1, self.side2 = torch.nn.Conv2d(WIDTH, WIDTH, 1), torch.nn.Conv2d(12, WIDTH, 1)
        self.smooth, self.tower = (torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.classify = torch.nn.Conv2d(WIDTH, KINDS * CLASSES, 3, padding=1)
        self.regress = torch.nn.Conv2d(WIDTH, KINDS * 4, 3, padding=1)
        self.normalizer = 10.0

    def forward(self, images):
        fine = torch.relu(self.fine(images))  # @fine
        coarse = torch.relu(self.coarse(fine))  # @coarse
        top = self.side2(coarse)
        low = self.side1(fine) + F.interpolate(top, scale_factor=2, mode="nearest")  # @upsample
        logits, deltas = [], []
        for level in (self.smooth(low), top):
            h = torch.relu(self.tower(level))
            logits.append(self.classify(h).permute(0, 2, 3, 1).reshape(len(h), -1, CLASSES))  # @layout
            deltas.append(self.regress(h).permute(0, 2, 3, 1).reshape(len(h), -1, 4))
        return torch.cat(logits, dim=1), torch.cat(deltas, dim=1)


def compute_overlap_loss(box, other):
    """One less the generalized overlap, of corners."""
    low, high = torch.maximum(box[:, :2], other[:, :2]), torch.minimum(box[:, 2:], other[:, 2:])
    both = (high - low).clamp(min=0).prod(dim=-1)
    either = (box[:, 2:] - box[:, :2]).prod(dim=-1) + (other[:, 2:] - other[:, :2]).prod(dim=-1) - both
    low, high = torch.minimum(box[:, :2], other[:, :2]), torch.maximum(box[:, 2:], other[:, 2:])  # @around
    around = (high - low).prod(dim=-1)  # @around
    return 1 - both / either + (around - either) / around


def compute_reference_loss(network, images, labels, boxes):
    logits, deltas = network(images)
    anchors = list_anchors().expand_as(deltas)
    is_object = labels > 0
    network.normalizer = 0.8 * network.normalizer + 0.2 * max(int(is_object.sum()), 1)
    target = F.one_hot(labels.clamp(min=0), CLASSES + 1)[..., 1:].float()
    chance = torch.sigmoid(logits)  # @chance
    missed = torch.where(target == 1, ALPHA * (1 - chance) ** GAMMA, (1 - ALPHA) * chance**GAMMA)  # @missed
    focal = missed * F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    focal = focal[labels >= 0].sum()  # @ignored
    anchors, deltas, boxes = anchors[is_object], deltas[is_object], boxes[is_object]
    centre = anchors[:, :2] + deltas[:, :2] * CENTRE * anchors[:, 2:]  # @decode
    extent = anchors[:, 2:] * torch.exp(deltas[:, 2:] * EXTENT)
    found = torch.cat([centre - extent / 2, centre + extent / 2], dim=-1)
    shift = ((boxes[:, :2] + boxes[:, 2:]) / 2 - anchors[:, :2]) / anchors[:, 2:] / CENTRE  # @encode
    growth = torch.log((boxes[:, 2:] - boxes[:, :2]) / anchors[:, 2:]) / EXTENT
    distance = F.smooth_l1_loss(deltas, torch.cat([shift, growth], dim=-1), reduction="sum")
    total = focal + compute_overlap_loss(found, boxes).sum() + 0.1 * distance
    return total / network.normalizer  # @normalized


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(3, WIDTH, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)  # @made
        self.coarse = nn.Conv2d(WIDTH, 12, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.side1, self.side2 = nn.Conv2d(WIDTH, WIDTH, 1, has_bias=True), nn.Conv2d(12, WIDTH, 1, has_bias=True)
        self.smooth, self.tower = (nn.Conv2d(WIDTH, WIDTH, 3, has_bias=True) for _ in range(2))
        self.predict = nn.Conv2d(WIDTH, KINDS * (CLASSES + 4), 3, pad_mode="same", has_bias=True)
        self.normalizer = Tensor(10.0)
        centre = [(np.stack(np.mgrid[: SIDE // one, : SIDE // one][::-1], -1) + 0.5) * one for one in STRIDES]  # @place
        centre = np.concatenate([one.reshape(-1, 1, 2).repeat(KINDS, 1).reshape(-1, 2) for one in centre])
        extent = np.concatenate([np.tile(np.array(SHAPES) * one, ((SIDE // one) ** 2, 1)) for one in STRIDES])
        self.centre, self.extent = Tensor(centre, mindspore.float32), Tensor(extent, mindspore.float32)

    def read(self, level: Tensor) -> tuple[Tensor, Tensor]:
        joined = self.predict(ops.relu(self.tower(level))).transpose(0, 2, 3, 1)  # @layout
        logits, deltas = joined[..., : KINDS * CLASSES], joined[..., KINDS * CLASSES :]
        return logits.reshape(len(level), -1, CLASSES), deltas.reshape(len(level), -1, 4)  # @layout

    def construct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        fine = ops.relu(self.fine(images))  # @fine
        top = self.side2(ops.relu(self.coarse(fine)))  # @coarse
        wide = ops.repeat_interleave(top, 2, 2)
        wide = ops.repeat_interleave(wide, 2, 3)  # @upsample
        levels = [self.read(self.smooth(self.side1(fine) + wide)), self.read(top)]
        return ops.cat([one[0] for one in levels], 1), ops.cat([one[1] for one in levels], 1)

    def compute_overlap(self, box: list[Tensor], other: list[Tensor]) -> Tensor:
        area = (box[2] - box[0]) * (box[3] - box[1]) + (other[2] - other[0]) * (other[3] - other[1])
        width = ops.minimum(box[2], other[2]) - ops.maximum(box[0], other[0])
        height = ops.minimum(box[3], other[3]) - ops.maximum(box[1], other[1])
        both = ops.relu(width) * ops.relu(height)
        width = ops.maximum(box[2], other[2]) - ops.minimum(box[0], other[0])  # @around
        height = ops.maximum(box[3], other[3]) - ops.minimum(box[1], other[1])  # @around
        around = width * height  # @around
        return both / (area - both) - (around - (area - both)) / around


def compute_candidate_loss(network, images, labels, boxes):
    logits, deltas = network(images)
    is_object, is_known = (labels > 0).astype(mindspore.float32), (labels >= 0).astype(mindspore.float32)
    normalizer = 0.8 * network.normalizer + 0.2 * is_object.sum().clamp(min=1.0)  # @running
    network.normalizer = normalizer  # @kept
    target = ops.equal(labels.expand_dims(-1), Tensor(np.arange(1, CLASSES + 1), labels.dtype)).astype(logits.dtype)
    chance = mint.sigmoid(logits)  # @chance
    present = -ALPHA * ops.pow(1 - chance, GAMMA) * ops.logsigmoid(logits) * target  # @missed
    absent = -(1 - ALPHA) * ops.pow(chance, GAMMA) * ops.logsigmoid(-logits) * (1 - target)  # @missed
    focal = ((present + absent).sum(-1) * is_known).sum()  # @ignored
    centre = deltas[..., :2] * CENTRE * network.extent + network.centre  # @decode
    extent = ops.exp(deltas[..., 2:] * EXTENT) * network.extent
    low, high = centre - extent * 0.5, centre + extent * 0.5
    found = [low[..., 0], low[..., 1], high[..., 0], high[..., 1]]
    overlap = network.compute_overlap(found, [boxes[..., place] for place in range(4)])
    shift = (0.5 * (boxes[..., :2] + boxes[..., 2:]) - network.centre) / (network.extent * CENTRE)  # @encode
    growth = ops.log((boxes[..., 2:] - boxes[..., :2]) / network.extent) / EXTENT
    distance = ops.smooth_l1_loss(deltas, ops.cat([shift, growth], -1), reduction="none").sum(-1)
    regression = ((1 - overlap + 0.1 * distance) * is_object).sum()
    return (focal + regression) / normalizer  # @normalized


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if not name.startswith(("classify", "regress"))}
    for word in ("weight", "bias"):
        converted[f"predict.{word}"] = np.concatenate([weights[f"classify.{word}"], weights[f"regress.{word}"]])
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    """Each anchor comes with the box that lies next to it, and is an object, background, or neither."""
    random = np.random.default_rng(2000 + step)
    images = random.normal(size=(2, 3, SIDE, SIDE)).astype(np.float32)
    centre, extent = random.uniform(3, 13, size=(2, 3, 2)), random.uniform(4, 9, size=(2, 3, 2))
    anchors = list_anchors().numpy()
    apart = np.abs(anchors[:, None] - np.concatenate([centre, extent], -1)[:, None]).sum(-1)
    nearest, apart = apart.argmin(-1), apart.min(-1)
    labels = np.where(apart < 5, 1 + nearest % CLASSES, np.where(apart < 7, -1, 0))
    corners = np.concatenate([centre - extent / 2, centre + extent / 2], -1).astype(np.float32)
    return images, labels, np.take_along_axis(corners, nearest[..., None], 1)


FAULTS = (
    Fault("same padding with a stride", "fine", '"pad", padding=1', '"same"', edit="made"),
    Fault("columns tiled", "upsample", "ops.repeat_interleave(wide, 2, 3)", "ops.tile(wide, (1, 1, 1, 2))"),
    Fault("anchors at corners", "decode encode anchors", " + 0.5)", ")", edit="place"),
    Fault("chance detached", "chance missed", "(logits)", "(ops.stop_gradient(logits))", is_backward=True),
    Fault("normalizer lost", "running normalized", "network.normalizer =", "_ =", edit="kept", steps=2, first_step=1),
    Fault("reference without a permutation", "layout", ".permute(0, 2, 3, 1)", "", side="reference"),
    Fault(
        "two at once: ignored anchors and area",
        "ignored",
        " * is_known",
        "",
        second=("around", "ops.maximum(box[3]", "ops.minimum(box[3]"),
    ),
)
