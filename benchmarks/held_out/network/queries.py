"""A detector by learned queries: boxes as middle and size, overlaps, and a class for nothing; matched before."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

HIGH, WIDE, WIDTH, HEADS, HIDDEN, QUERIES, CLASSES, LAYERS, BATCH = 3, 4, 8, 2, 10, 5, 3, 2, 2
SIZE, NOTHING, RARE = WIDTH // HEADS, CLASSES, 0.1


class Decoder(torch.nn.Module):
    """Queries attend to themselves, then to the picture; what places them is added to queries and keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross_attn = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(WIDTH) for _ in range(3))
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, queries, seen, places, is_empty):
        q = x + queries  # @placed
        x = self.norm1(x + self.self_attn(q, q, x, need_weights=False)[0])  # @self @softmax @self_value @add1 @norm1
        q, k = x + queries, seen + places  # @cross_query @cross_key
        y, _ = self.cross_attn(q, k, seen, key_padding_mask=is_empty)  # @cross @softmax @cross_value @empty
        x = self.norm2(x + y)  # @add2 @norm2
        return self.norm3(x + self.down(F.relu(self.up(x))))  # @feed @add3 @norm3


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.queries = torch.nn.Embedding(QUERIES, WIDTH)
        self.rows, self.columns = torch.nn.Embedding(HIGH, WIDTH // 2), torch.nn.Embedding(WIDE, WIDTH // 2)
        self.layers = torch.nn.ModuleList([Decoder() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.classes, self.boxes1 = torch.nn.Linear(WIDTH, CLASSES + 1), torch.nn.Linear(WIDTH, HIDDEN)
        self.boxes2 = torch.nn.Linear(HIDDEN, 4)

    def forward(self, image, is_empty):
        seen = F.relu(self.conv(image)).flatten(2).transpose(1, 2)  # @conv @flat
        across = self.columns.weight.unsqueeze(0).expand(HIGH, -1, -1)  # @across
        down = self.rows.weight.unsqueeze(1).expand(-1, WIDE, -1)  # @down
        places = torch.cat([across, down], dim=-1).flatten(0, 1)  # @places
        queries = self.queries.weight.expand(len(image), -1, -1)
        x, found = torch.zeros_like(queries), []  # @begin
        for layer in self.layers:
            x = layer(x, queries, seen, places, is_empty.flatten(1))
            h = self.norm(x)  # @norm
            found.append((self.classes(h), self.boxes2(F.relu(self.boxes1(h))).sigmoid()))  # @classes @boxes @inside
        return found


def to_corners(box):
    middle, size = box[..., :2], box[..., 2:]
    return torch.cat([middle - size / 2, middle + size / 2], dim=-1)  # @corners @upper


def overlap(first, second):
    """Of pairs of boxes: the shared part of the area, less the empty part of the box around both."""
    first, second = to_corners(first), to_corners(second)
    area1, area2 = ((one[:, 2:] - one[:, :2]).prod(dim=-1) for one in (first, second))  # @areas
    low, high = torch.maximum(first[:, :2], second[:, :2]), torch.minimum(first[:, 2:], second[:, 2:])  # @shared @upper
    shared = (high - low).clamp(min=0).prod(dim=-1)  # @clamped @shared_area
    both = area1 + area2 - shared  # @both
    low, high = torch.minimum(first[:, :2], second[:, :2]), torch.maximum(first[:, 2:], second[:, 2:])  # @around
    around = (high - low).prod(dim=-1)  # @around_area
    return shared / both - (around - both) / around  # @overlap


def compute_reference_loss(network, image, is_empty, matched, labels, boxes):
    """Object number n of a picture was given to the query `matched[n]`."""
    total, picture = 0.0, torch.arange(BATCH).unsqueeze(1)
    weight = torch.tensor([1.0] * CLASSES + [RARE])
    wanted = torch.full((BATCH, QUERIES), NOTHING)
    wanted[picture, matched] = labels
    for logits, found in network(image, is_empty):
        total = total + F.cross_entropy(logits.transpose(1, 2), wanted, weight)  # @chance @weighted @class_loss @total1
        mine, other = found[picture, matched].flatten(0, 1), boxes.flatten(0, 1)  # @picked
        total = total + 5 * F.l1_loss(mine, other, reduction="sum") / len(other)  # @distance @total2
        total = total + 2 * (1 - overlap(mine, other)).sum() / len(other)  # @total3
    return total  # @loss


class Attend(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(ops.zeros((3 * WIDTH, WIDTH)), name="weight")
        self.bias = ms.Parameter(ops.zeros((3 * WIDTH,)), name="bias")
        self.out = nn.Dense(WIDTH, WIDTH)

    def construct(self, query, key, value, bias=None):
        parts = []
        weights, shifts = mint.chunk(self.weight, 3), mint.chunk(self.bias, 3)  # @thirds
        for x, weight, shift in zip((query, key, value), weights, shifts, strict=True):
            x = ops.matmul(x, weight.T) + shift  # @self @self_value @cross @cross_value
            parts.append(x.reshape(BATCH, -1, HEADS, SIZE).transpose(0, 2, 1, 3))  # @self @cross
        q, k, v = parts
        score = ops.bmm(q, k.swapaxes(2, 3)) / SIZE**0.5  # @self @cross @score
        if bias is not None:
            score = score + bias  # @empty
        y = ops.bmm(ops.softmax(score, -1), v).transpose(0, 2, 1, 3)  # @self @cross @softmax
        return self.out(y.reshape(BATCH, -1, WIDTH))  # @self @cross


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = Attend(), Attend()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(3))
        self.up, self.down = nn.Dense(WIDTH, HIDDEN, activation="relu"), nn.Dense(HIDDEN, WIDTH)

    def construct(self, x, queries, seen, places, bias):
        q = x + queries  # @placed
        x = self.norm1(x + self.self_attn(q, q, x))  # @self_called @add1 @norm1
        y = self.cross_attn(x + queries, seen + places, seen, bias)  # @cross_query @cross_key @cross_called
        x = self.norm2(x + y)  # @add2 @norm2
        return self.norm3(x + self.down(self.up(x)))  # @feed @add3 @norm3


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.queries = ms.Parameter(ops.zeros((QUERIES, WIDTH)), name="queries")
        self.rows = ms.Parameter(ops.zeros((HIGH, WIDTH // 2)), name="rows")
        self.columns = ms.Parameter(ops.zeros((WIDE, WIDTH // 2)), name="columns")
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # @made
        self.classes, self.boxes1 = nn.Dense(WIDTH, CLASSES + 1), nn.Dense(WIDTH, HIDDEN)
        self.boxes2 = nn.Dense(HIDDEN, 4)

    def construct(self, image, is_empty):
        seen = ops.relu(self.conv(image)).transpose(0, 2, 3, 1).reshape(BATCH, -1, WIDTH)  # @conv @flat
        across = ops.tile(self.columns, (HIGH, 1))  # @across
        down = ops.repeat_elements(self.rows, WIDE, 0)  # @down
        places = ops.cat((across, down), axis=-1)  # @places
        bias = is_empty.reshape(BATCH, 1, 1, -1).astype(ms.float32) * -1e9  # @bias
        x, found = ops.zeros((BATCH, QUERIES, WIDTH), ms.float32), []  # @begin
        for layer in self.layers:
            x = layer(x, self.queries, seen, places, bias)
            found.append(self.norm(x))  # @norm
        h = ops.stack(found)
        return self.classes(h), ops.sigmoid(self.boxes2(ops.relu(self.boxes1(h))))  # @classes @boxes @inside


def measure_overlap(first, second):
    """The same by widths: boxes overlap by their mean size less the distance of their middles, along each axis."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = ops.unstack(first, -1), ops.unstack(second, -1)
    areas = w1 * h1 + w2 * h2  # @areas
    shared, around = 1.0, 1.0
    for a, b, size_a, size_b in ((x1, x2, w1, w2), (y1, y2, h1, h2)):
        low = ops.maximum(a - size_a / 2, b - size_b / 2)  # @corners @shared
        high = ops.minimum(a + size_a / 2, b + size_b / 2)  # @corners @shared @upper
        shared = shared * ops.relu(high - low)  # @clamped @shared_area
        span = size_a + size_b - (high - low)  # @around
        around = around * span  # @around_area
    both = areas - shared  # @both
    return shared / both + both / around - 1  # @overlap


def compute_candidate_loss(network, image, is_empty, matched, labels, boxes):
    logits, found = network(image, is_empty)
    given = ops.one_hot(matched, QUERIES).astype(ms.float32)  # @given
    sure = ops.matmul(given.swapaxes(1, 2), ops.one_hot(labels, CLASSES + 1).astype(ms.float32))  # @sure
    nothing = (1 - given.sum(1)).expand_dims(-1)
    sure = ops.cat((sure[..., :NOTHING], nothing * RARE), axis=-1)  # @weighted
    chance = (sure * ops.log_softmax(logits, -1)).sum((1, 2, 3))  # @chance @class_loss
    loss = -(chance / sure.sum()).sum()  # @class_loss @total1
    mine = ops.matmul(given, found).reshape(LAYERS, -1, 4)  # @picked
    other = boxes.reshape(-1, 4)
    loss = loss + 5 * ops.abs(mine - other).sum((-2, -1)).sum() / len(other)  # @distance @total2
    wide = ops.tile(other, (LAYERS, 1))
    return loss + 2 * (1 - measure_overlap(mine.reshape(-1, 4), wide)).sum() / len(other)  # @total3 @loss


def convert(weights: Weights) -> Weights:
    names = {f"{name}.weight": name for name in ("queries", "rows", "columns")}
    converted = rename(weights, norms=("norm",), names=names)
    return {name.replace("in_proj_", "").replace("out_proj", "out"): array for name, array in converted.items()}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(5500 + step)
    image = random.normal(size=(BATCH, 3, 2 * HIGH, 2 * WIDE)).astype(np.float32)
    is_empty = np.zeros((BATCH, HIGH, WIDE), bool)
    is_empty[1, :, 3:] = is_empty[1, 2:] = True
    matched = np.stack([random.permutation(QUERIES)[:3] for _ in range(BATCH)])
    boxes = random.uniform([0.3, 0.3, 0.2, 0.2], [0.7, 0.7, 0.5, 0.5], size=(BATCH, 3, 4)).astype(np.float32)
    return image, is_empty, matched, random.integers(CLASSES, size=(BATCH, 3)), boxes


FAULTS = (
    Fault("places of rows before those of columns", "places cross_key", "(across, down)", "(down, across)"),
    Fault(
        "picture placed in the values, too",
        "cross_called cross_value",
        "seen + places, seen,",
        "seen + places, seen + places,",
    ),
    Fault(
        "queries not added again",
        "cross_query cross_value",
        "self.cross_attn(x + queries,",
        "self.cross_attn(x,",
        edit="cross_called",
    ),
    Fault(
        "mask the other way round",
        "bias empty",
        "is_empty.reshape(BATCH, 1, 1, -1).astype(ms.float32) *",
        "(1 - is_empty.reshape(BATCH, 1, 1, -1).astype(ms.float32)) *",
    ),
    Fault(
        "begun with the queries",
        "begin placed self_value",
        "ops.zeros((BATCH, QUERIES, WIDTH), ms.float32)",
        "ops.tile(self.queries, (BATCH, 1, 1))",
    ),
    Fault("softmax over the queries", "softmax", "ops.softmax(score, -1)", "ops.softmax(score, -2)"),
    Fault("epsilon of the shared norm", "norm", "epsilon=1e-5", "epsilon=1e-2", edit="made"),
    Fault("nothing counts like the rest", "weighted", "nothing * RARE", "nothing"),
    Fault(
        "sides from the middle by the whole size", "upper", "a + size_a / 2, b + size_b / 2", "a + size_a, b + size_b"
    ),
    Fault("boxes that do not touch share something", "clamped shared_area", "ops.relu(high - low)", "(high - low)"),
    Fault(
        "shared part passes no gradient",
        "both shared_area",
        "both = areas - shared",
        "both = areas - ops.stop_gradient(shared)",
        is_backward=True,
    ),
    Fault("reference drops earlier layers", "total1 total2", "total + F.cross", "F.cross", side="reference"),
    Fault(
        "wrong residual after the picture, and class loss not divided by the weights",
        "add2",
        "x = self.norm2(x + y)",
        "x = self.norm2(queries + y)",
        second=("class_loss", "(chance / sure.sum())", "(chance / (BATCH * QUERIES))"),
    ),
)
