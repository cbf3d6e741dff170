"""A detector without anchors on a pyramid: loops over pictures and boxes by corners, or all at once in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

SIZE, STEM, WIDTH, CLASSES, BATCH, BOXES, ALPHA, GAMMA = 24, 6, 8, 3, 3, 3, 0.25, 2.0
LEVELS, FAR = ((6, 4, 0.0, 7.0), (3, 8, 7.0, 1e8)), 1e8
"""Cells along a side, stride, least and largest reach of boxes."""


class ConvBlock(torch.nn.Sequential):
    def __init__(self, enter: int, leave: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            torch.nn.Conv2d(enter, leave, kernel, stride, kernel // 2, bias=False),
            torch.nn.BatchNorm2d(leave, eps=1e-3, momentum=0.03),
            torch.nn.LeakyReLU(0.1),
        )

    def forward(self, x):
        for layer in self:
            x = layer(x)  # @conv @bn @leaky
        return x


class Head(torch.nn.Module):
    """Shared by the levels, but for a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = torch.nn.Sequential(
            torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1), torch.nn.GroupNorm(2, WIDTH), torch.nn.ReLU()
        )
        self.cls_logits = torch.nn.Conv2d(WIDTH, CLASSES, 3, padding=1)
        self.bbox_pred = torch.nn.Conv2d(WIDTH, 4, 3, padding=1)
        self.centerness = torch.nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.level_scale = torch.nn.Parameter(torch.ones(len(LEVELS)))

    def forward(self, features):
        logits, reach, centre = [], [], []
        for number, x in enumerate(features):
            h = self.tower(x)  # @tower
            logits.append(self.cls_logits(h).permute(0, 2, 3, 1).flatten(1, 2))  # @logits @logits_laid
            boxes = torch.exp(self.bbox_pred(h) * self.level_scale[number]) * LEVELS[number][1]  # @boxes @scaled @reach
            reach.append(boxes.permute(0, 2, 3, 1).flatten(1, 2))  # @reach_laid
            centre.append(self.centerness(h).permute(0, 2, 3, 1).flatten(1))  # @centre
        return torch.cat(logits, dim=1), torch.cat(reach, dim=1), torch.cat(centre, dim=1)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage3 = ConvBlock(3, STEM, 3, 2), ConvBlock(STEM, WIDTH, 3, 2)
        self.stage4 = ConvBlock(WIDTH, WIDTH, 3, 2)
        self.pool = torch.nn.MaxPool2d(3, stride=1, padding=1)
        self.spp = ConvBlock(3 * WIDTH, WIDTH, 1)
        self.lateral3, self.lateral4 = torch.nn.Conv2d(WIDTH, WIDTH, 1), torch.nn.Conv2d(WIDTH, WIDTH, 1)
        self.smooth = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.head = Head()

    def forward(self, images):
        c3 = self.stage3(self.stem(images))
        c4 = self.stage4(c3)
        once = self.pool(c4)  # @pool
        c4 = self.spp(torch.cat([c4, once, self.pool(once)], dim=1))  # @pool2 @pyramid
        p4 = self.lateral4(c4)  # @lateral4
        above = F.interpolate(p4, size=c3.shape[-2:], mode="nearest")  # @above
        p3 = self.smooth(self.lateral3(c3) + above)  # @lateral3 @summed @smooth
        return self.head([p3, p4])


def find_targets(boxes, labels):
    """Of one picture: the class of each location, and how far the sides of its box are."""
    classes, reaches = [], []
    for cells, stride, least, most in LEVELS:
        line = (torch.arange(cells) + 0.5) * stride  # @line
        y, x = torch.meshgrid(line, line, indexing="ij")  # @grid
        x, y = x.reshape(-1, 1), y.reshape(-1, 1)
        reach = torch.stack([x - boxes[:, 0], y - boxes[:, 1], boxes[:, 2] - x, boxes[:, 3] - y], dim=-1)  # @sides
        largest = reach.amax(dim=-1)  # @largest
        fits = (reach.amin(dim=-1) > 0) & (largest > least) & (largest <= most)  # @fits
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        area, chosen = torch.where(fits, area, FAR).min(dim=1)  # @area @chosen
        classes.append(torch.where(area < FAR, labels[chosen], CLASSES))  # @class
        reaches.append(reach[torch.arange(len(chosen)), chosen])  # @target
    return torch.cat(classes), torch.cat(reaches)


def measure_overlap(found, target):
    """Generalised, of boxes by their corners."""
    left, right = torch.maximum(found[:, :2], target[:, :2]), torch.minimum(found[:, 2:], target[:, 2:])  # @common
    common = (right - left).clamp(min=0).prod(dim=1)  # @common
    union = (found[:, 2:] - found[:, :2]).prod(dim=1) + (target[:, 2:] - target[:, :2]).prod(dim=1) - common  # @union
    left, right = torch.minimum(found[:, :2], target[:, :2]), torch.maximum(found[:, 2:], target[:, 2:])  # @hull
    hull = (right - left).prod(dim=1)  # @hull
    return common / union - (hull - union) / hull  # @overlap


def compute_reference_loss(network, images, boxes, labels):
    logits, reach, centre = network(images)
    targets = [find_targets(*both) for both in zip(boxes, labels, strict=True)]
    classes, target = torch.stack([one for one, _ in targets]), torch.stack([one for _, one in targets])
    is_in = classes < CLASSES  # @is_in
    count = is_in.sum()  # @count
    goal = F.one_hot(classes, CLASSES + 1)[..., :CLASSES].float()  # @goal
    chance = torch.sigmoid(logits)  # @chance
    error = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")  # @error
    right = chance * goal + (1 - chance) * (1 - goal)  # @right
    alpha = ALPHA * goal + (1 - ALPHA) * (1 - goal)  # @alpha
    focal = (alpha * (1 - right) ** GAMMA * error).sum() / count  # @focal @focal_sum
    reach, target = reach[is_in], target[is_in]
    across, along = target[:, [0, 2]], target[:, [1, 3]]
    inner = across.amin(1) / across.amax(1) * (along.amin(1) / along.amax(1))  # @inner
    middle = inner.sqrt()  # @middle
    found = torch.cat([-reach[:, :2], reach[:, 2:]], dim=1)
    overlap = measure_overlap(found, torch.cat([-target[:, :2], target[:, 2:]], dim=1))
    boxed = ((1 - overlap) * middle).sum() / middle.sum()  # @boxed
    centred = F.binary_cross_entropy_with_logits(centre[is_in], middle)  # @centred
    return focal + boxed + centred  # @loss


class Unit(nn.Cell):
    def __init__(self, enter, leave, kernel=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(enter, leave, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=False)
        self.bn = nn.BatchNorm2d(leave, eps=1e-3, momentum=0.97)  # @bn_made

    def construct(self, x):
        x = self.bn(self.conv(x))  # @conv @bn
        return ops.leaky_relu(x, 0.1)  # @leaky


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage3, self.stage4 = Unit(3, STEM, 3, 2), Unit(STEM, WIDTH, 3, 2), Unit(WIDTH, WIDTH, 3, 2)
        self.spp = Unit(3 * WIDTH, WIDTH, 1)
        self.lateral3, self.lateral4 = nn.Conv2d(WIDTH, WIDTH, 1, has_bias=True), nn.Dense(WIDTH, WIDTH)
        self.smooth = nn.Conv2d(WIDTH, WIDTH, 3, has_bias=True)
        self.tower = nn.Conv2d(WIDTH, WIDTH, 3, has_bias=True)
        self.norm = nn.GroupNorm(2, WIDTH)
        self.leave = nn.Conv2d(WIDTH, CLASSES + 4 + 1, 3, has_bias=True)
        self.scale = Parameter(ops.ones((len(LEVELS),)), name="scale")

    def look(self, x, number):
        h = ops.relu(self.norm(self.tower(x)))  # @tower
        out = self.leave(h)  # @logits @boxes @centre
        out = out.reshape(len(x), CLASSES + 5, -1).swapaxes(1, 2)  # @logits_laid @laid
        logits, boxes, centre = out[..., :CLASSES], out[..., CLASSES:-1], out[..., -1]  # @logits_laid @reach_laid
        reach = ops.exp(boxes * self.scale[number]) * LEVELS[number][1]  # @scaled @reach
        return logits, reach, centre

    def construct(self, images):
        c3 = self.stage3(self.stem(images))
        c4 = self.stage4(c3)
        once = ops.max_pool2d(c4, 3, 1, 1)  # @pool
        twice = ops.max_pool2d(c4, 5, 1, 2)  # @pool2
        c4 = self.spp(ops.cat((c4, once, twice), 1))  # @pyramid
        p4 = self.lateral4(c4.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # @lateral4
        above = p4.repeat_interleave(2, 2).repeat_interleave(2, 3)  # @above
        p3 = self.smooth(self.lateral3(c3) + above)  # @lateral3 @summed @smooth
        parts = [self.look(p3, 0), self.look(p4, 1)]
        return tuple(ops.cat(both, 1) for both in zip(*parts, strict=True))


def make_grid():
    """Of all locations: x, y, least and largest reach."""
    rows = []
    for cells, stride, least, most in LEVELS:
        y, x = np.indices((cells, cells)).reshape(2, -1)  # @grid_made
        limits = np.full((len(x), 2), (least, most))
        rows.append(np.column_stack([(x + 0.5) * stride, (y + 0.5) * stride, limits]))  # @line_made
    return ms.Tensor(np.concatenate(rows), ms.float32)


def find_all_targets(boxes, labels):
    grid = make_grid().expand_dims(1)
    place = grid[..., :2]
    reach = ops.cat((place - boxes[:, None, :, :2], boxes[:, None, :, 2:] - place), -1)  # @sides @line @grid
    largest = ops.amax(reach, -1)  # @largest
    fits = ops.logical_and(largest > grid[..., 2], largest <= grid[..., 3])  # @fits
    fits = ops.logical_and(fits, ops.amin(reach, -1) > 0)  # @fits
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1).expand_dims(1)
    area = ops.where(fits, area, ops.full_like(largest, FAR))  # @area
    chosen = ops.one_hot(area.argmin(-1), BOXES).astype(ms.float32)  # @chosen
    is_in = (ops.amin(area, -1) < FAR).astype(ms.float32)  # @is_in
    classes = (chosen * labels.expand_dims(1)).sum(-1).astype(ms.int32)  # @class
    target = (chosen.expand_dims(-1) * reach).sum(2)  # @target
    return classes, ops.where(is_in.expand_dims(-1) > 0, target, ops.ones_like(target)), is_in  # @target


def compute_candidate_loss(network, images, boxes, labels):
    logits, reach, centre = network(images)
    classes, target, is_in = find_all_targets(boxes, labels)
    count = is_in.sum()  # @count
    goal = ops.one_hot(classes, CLASSES).astype(ms.float32) * is_in.expand_dims(-1)  # @goal
    chance = ops.sigmoid(logits)  # @chance
    hit = ALPHA * ops.pow(1 - chance, GAMMA) * ops.softplus(-logits)  # @error @right @alpha @focal @hit
    miss = (1 - ALPHA) * ops.pow(chance, GAMMA) * ops.softplus(logits)  # @error @right @alpha @focal @miss
    focal = (goal * hit + (1 - goal) * miss).sum() / count  # @focal @focal_sum
    near, far = ops.minimum(target[..., :2], target[..., 2:]), ops.maximum(target[..., :2], target[..., 2:])  # @inner
    inner = (near / far).prod(-1)  # @inner
    middle = ops.sqrt(inner)  # @middle
    least, most = ops.minimum(reach, target), ops.maximum(reach, target)  # @common @hull
    common = (least[..., :2] + least[..., 2:]).prod(-1)  # @common
    hull = (most[..., :2] + most[..., 2:]).prod(-1)  # @hull
    union = sum((one[..., :2] + one[..., 2:]).prod(-1) for one in (reach, target)) - common  # @union
    overlap = common / union - (hull - union) / hull  # @overlap
    weight = middle * is_in  # @weight
    boxed = ((1 - overlap) * weight).sum() / weight.sum()  # @boxed
    ones = ops.ones_like(is_in)
    centred = ops.binary_cross_entropy_with_logits(centre, middle, is_in, ones, "sum") / count  # @centred
    return focal + boxed + centred  # @loss


def convert(weights: Weights) -> Weights:
    norms = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    converted = {"scale": weights["head.level_scale"]}
    for unit in ("stem", "stage3", "stage4", "spp"):
        converted[f"{unit}.conv.weight"] = weights[f"{unit}.0.weight"]
        converted |= {f"{unit}.bn.{new}": weights[f"{unit}.1.{old}"] for old, new in norms.items()}
    for word in ("weight", "bias"):
        converted |= {f"{name}.{word}": weights[f"{name}.{word}"] for name in ("lateral3", "lateral4", "smooth")}
        converted[f"tower.{word}"] = weights[f"head.tower.0.{word}"]
        converted[f"norm.{norms[word]}"] = weights[f"head.tower.1.{word}"]
        parts = [weights[f"head.{name}.{word}"] for name in ("cls_logits", "bbox_pred", "centerness")]
        converted[f"leave.{word}"] = np.concatenate(parts)
    converted["lateral4.weight"] = converted["lateral4.weight"][:, :, 0, 0]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7700 + step)
    images = random.normal(size=(BATCH, 3, SIZE, SIZE)).astype(np.float32)
    middle = random.uniform(8, 16, size=(BATCH, BOXES, 2))
    size = np.array([[7.5, 6.0], [4.5, 5.5], [5.0, 7.0]]) + random.uniform(-0.5, 0.5, size=middle.shape)
    boxes = np.concatenate([middle - size, middle + size], axis=-1).astype(np.float32)
    return images, boxes, random.integers(CLASSES, size=(BATCH, BOXES))


FAULTS = (
    Fault("slope of another library", "leaky", "ops.leaky_relu(x, 0.1)", "ops.leaky_relu(x, 0.2)"),
    Fault("epsilon left as it is", "bn", "eps=1e-3, ", "", edit="bn_made"),
    Fault(
        "second pool of the same size", "pool2 pyramid", "ops.max_pool2d(c4, 5, 1, 2)", "ops.max_pool2d(c4, 3, 1, 1)"
    ),
    Fault(
        "level above tiled",
        "above summed",
        "p4.repeat_interleave(2, 2).repeat_interleave(2, 3)",
        "ops.tile(p4, (1, 1, 2, 2))",
    ),
    Fault(
        "convolution of the sum left out",
        "smooth tower",
        "self.smooth(self.lateral3(c3) + above)",
        "self.lateral3(c3) + above",
    ),
    Fault(
        "channels laid out as places",
        "logits_laid laid reach_laid",
        ".reshape(len(x), CLASSES + 5, -1).swapaxes(1, 2)",
        ".reshape(len(x), -1, CLASSES + 5)",
        edit="laid",
    ),
    Fault("scale of the first level for all", "scaled reach", "self.scale[number]", "self.scale[0]"),
    Fault(
        "locations at the corners of cells",
        "line sides",
        "(x + 0.5) * stride, (y + 0.5) * stride",
        "x * stride, y * stride",
        edit="line_made",
    ),
    Fault("rows and columns exchanged", "grid sides", "y, x = np.indices", "x, y = np.indices", edit="grid_made"),
    Fault(
        "first of the boxes that fit",
        "area chosen",
        "ops.one_hot(area.argmin(-1), BOXES)",
        "ops.one_hot(fits.astype(ms.int32).argmax(-1), BOXES)",
        edit="chosen",
    ),
    Fault("alpha for the background", "miss alpha focal", "(1 - ALPHA) * ops.pow", "ALPHA * ops.pow"),
    Fault(
        "focus passes no gradient",
        "hit focal right chance",
        "ops.pow(1 - chance, GAMMA)",
        "ops.pow(ops.stop_gradient(1 - chance), GAMMA)",
        is_backward=True,
    ),
    Fault("no root of the centre", "middle", "ops.sqrt(inner)", "inner"),
    Fault(
        "reference takes the plain overlap",
        "overlap boxed",
        " - (hull - union) / hull",
        "",
        side="reference",
    ),
    Fault(
        "classes by the number of places, and boxes not weighted",
        "focal_sum",
        ".sum() / count",
        ".sum() / is_in.size",
        second=("weight", "middle * is_in", "is_in"),
    ),
)
