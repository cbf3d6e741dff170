"""Attention by relative places and a convolution between two halves of a feed-forward; places shifted or gathered."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

BANDS, TIME, WIDTH, HEADS, HIDDEN, CODES, LAYERS, HOT = 6, 11, 8, 2, 12, 7, 2, 2.0
FRAMES, SIZE, LESS = (TIME + 1) // 2, WIDTH // HEADS, BANDS // 2


class Feed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.up(self.norm(x))))  # @feed


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.place = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.by_word, self.by_place = (torch.nn.Parameter(torch.zeros(HEADS, SIZE)) for _ in range(2))

    def forward(self, x, places, is_empty):
        h = self.norm(x)  # @norm
        q, k, v = (layer(h).unflatten(-1, (HEADS, SIZE)) for layer in (self.query, self.key, self.value))  # @project
        p = self.place(places).unflatten(-1, (HEADS, SIZE))  # @place
        words = torch.einsum("bihd,bjhd->bhij", q + self.by_word, k)  # @words
        far = torch.einsum("bihd,phd->bhip", q + self.by_place, p)  # @far
        batch = len(x)
        far = F.pad(far, (1, 0)).view(batch, HEADS, 2 * FRAMES, FRAMES)[:, :, 1:]  # @shift
        far = far.reshape(batch, HEADS, FRAMES, 2 * FRAMES - 1)[..., :FRAMES]  # @shift
        score = (words + far) / SIZE**0.5  # @score
        score = score.masked_fill(is_empty[:, None, None, :], float("-inf"))  # @masked
        y = torch.einsum("bhij,bjhd->bihd", score.softmax(dim=-1), v)  # @chance @context
        return self.out(y.flatten(2))  # @merge @out


class Convolve(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.bn = torch.nn.LayerNorm(WIDTH), torch.nn.BatchNorm1d(WIDTH)
        self.enter, self.leave = torch.nn.Conv1d(WIDTH, 2 * WIDTH, 1), torch.nn.Conv1d(WIDTH, WIDTH, 1)
        self.depth = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, x, is_empty):
        h = self.norm(x).transpose(1, 2)  # @conv_norm
        h = F.glu(self.enter(h), dim=1)  # @enter @halves @glu
        h = h.masked_fill(is_empty.unsqueeze(1), 0)  # @emptied
        h = F.silu(self.bn(self.depth(h)))  # @depth @bn @conv_act
        return self.leave(h).transpose(1, 2)  # @leave


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feed1, self.feed2 = Feed(), Feed()
        self.attention, self.convolve = Attention(), Convolve()
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x, places, is_empty):
        x = x + 0.5 * self.feed1(x)  # @first
        x = x + self.attention(x, places, is_empty)  # @second
        x = x + self.convolve(x, is_empty)  # @third
        return self.norm(x + 0.5 * self.feed2(x))  # @fourth @last_norm


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.enter = torch.nn.Conv2d(1, 4, 3, stride=2, padding=1), torch.nn.Linear(4 * LESS, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = torch.nn.Linear(WIDTH, CODES)

    def forward(self, x, lengths):
        h = F.relu(self.conv(x.unsqueeze(1)))  # @conv
        x = self.enter(h.permute(0, 2, 1, 3).flatten(2))  # @flat @enter_all
        is_empty = torch.arange(FRAMES) >= ((lengths + 1) // 2).unsqueeze(1)  # @empty
        steps = torch.arange(FRAMES - 1, -FRAMES, -1.0).unsqueeze(1)  # @steps
        angle = steps * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)  # @angle
        places = torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)  # @places
        found = []
        for block in self.blocks:
            x = block(x, places, is_empty)
            found.append(self.head(x))  # @head
        return found, is_empty


def compute_reference_loss(network, x, lengths, codes, teacher):
    (early, late), is_empty = network(x, lengths)
    codes = codes.masked_fill(is_empty, -1)  # @counted
    loss = F.cross_entropy(late.transpose(1, 2), codes, ignore_index=-1)  # @late
    loss = loss + 0.3 * F.cross_entropy(early.transpose(1, 2), codes, ignore_index=-1)  # @early @sum
    ours, theirs = F.log_softmax(late / HOT, dim=-1), F.softmax(teacher / HOT, dim=-1)  # @ours @theirs
    away = F.kl_div(ours[~is_empty], theirs[~is_empty], reduction="batchmean")  # @away @chosen
    return loss + HOT**2 * away  # @loss


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.feed1, self.feed2 = self.make_feed(), self.make_feed()
        self.norm1, self.norm2, self.norm = (nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(3))
        self.joined, self.place = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.out = nn.Dense(WIDTH, WIDTH)
        self.by_word = ms.Parameter(ops.zeros((HEADS, 1, SIZE)), name="by_word")
        self.by_place = ms.Parameter(ops.zeros((HEADS, 1, SIZE)), name="by_place")
        self.enter, self.leave = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.depth = nn.Conv1d(WIDTH, WIDTH, 3, pad_mode="same", group=WIDTH, has_bias=True)
        self.bn = nn.BatchNorm1d(WIDTH, momentum=0.9)  # @bn_made
        index = FRAMES - 1 - np.arange(FRAMES)[:, None] + np.arange(FRAMES)[None, :]  # @index_made
        self.index = ms.Tensor(index, ms.int32)

    def make_feed(self):
        norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        return nn.SequentialCell(norm, nn.Dense(WIDTH, HIDDEN), nn.SiLU(), nn.Dense(HIDDEN, WIDTH))

    def split(self, x):
        return x.reshape(*x.shape[:-1], HEADS, SIZE).swapaxes(-2, -3)  # @heads

    def attend(self, x, places, bias):
        q, k, v = (self.split(part) for part in mint.chunk(self.joined(self.norm1(x)), 3, dim=-1))  # @norm @project
        p = self.split(self.place(places))  # @place
        words = ops.matmul(q + self.by_word, k.swapaxes(-1, -2))  # @words
        far = ops.matmul(q + self.by_place, p.swapaxes(-1, -2))  # @far
        index = ops.broadcast_to(self.index, (len(x), HEADS, FRAMES, FRAMES))  # @shift
        far = ops.gather_elements(far, 3, index)  # @shift
        chance = ops.softmax((words + far) * SIZE**-0.5 + bias, -1)  # @score @masked @chance
        y = ops.matmul(chance, v).transpose(0, 2, 1, 3)  # @context
        return self.out(y.reshape(x.shape))  # @merge @out

    def convolve(self, x, full):
        left, right = mint.chunk(self.enter(self.norm2(x)), 2, dim=-1)  # @conv_norm @enter @halves
        h = left * ops.sigmoid(right) * full  # @glu @emptied
        h = self.depth(h.swapaxes(1, 2)).swapaxes(1, 2)  # @depth
        h = self.bn(h.reshape(-1, WIDTH)).reshape(h.shape)  # @bn
        return self.leave(h * ops.sigmoid(h))  # @conv_act @leave

    def construct(self, x, places, full):
        x = x + self.feed1(x) / 2  # @first
        bias = (1 - full).reshape(len(x), 1, 1, FRAMES) * -1e9  # @masked
        x = x + self.attend(x, places, bias)  # @second
        x = x + self.convolve(x, full)  # @third
        return self.norm(x + self.feed2(x) / 2)  # @fourth @last_norm


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.enter = nn.Dense(4 * LESS, WIDTH)
        self.blocks = nn.CellList([Layer() for _ in range(LAYERS)])
        self.head = nn.Dense(WIDTH, CODES)
        angle = np.arange(FRAMES - 1, -FRAMES, -1)[:, None] * 100.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)  # @steps_made
        places = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # @places_made
        self.places = ms.Tensor(places.reshape(-1, WIDTH), ms.float32)  # @table

    def construct(self, x, lengths):
        h = ops.relu(self.conv(x.expand_dims(1)))  # @conv
        h = h.transpose(0, 2, 1, 3).reshape(len(x), FRAMES, -1)  # @flat
        x = self.enter(h)  # @enter_all
        full = (ops.arange(FRAMES) < ((lengths + 1) // 2).expand_dims(1)).astype(ms.float32)  # @empty
        found = []
        for block in self.blocks:
            x = block(x, self.places, full.expand_dims(-1))
            found.append(self.head(x))  # @head
        return found, full


def compute_candidate_loss(network, x, lengths, codes, teacher):
    (early, late), full = network(x, lengths)
    wanted = ops.one_hot(codes, CODES).astype(ms.float32) * full.expand_dims(-1)  # @counted
    number = full.sum()
    loss = -(wanted * ops.log_softmax(late, -1)).sum() / number  # @late
    loss = loss - 0.3 * (wanted * ops.log_softmax(early, -1)).sum() / number  # @early @sum
    theirs = ops.log_softmax(teacher / HOT, -1)  # @theirs
    ours = ops.log_softmax(late / HOT, -1)  # @ours
    away = (ops.exp(theirs) * (theirs - ours)).sum(-1)  # @away
    return loss + HOT * HOT * (away * full).sum() / number  # @chosen @loss


def convert(weights: Weights) -> Weights:
    table = {"feed1.norm": "feed1.0", "feed2.norm": "feed2.0", ".up.": ".1.", ".down.": ".3."}
    table |= {"attention.norm": "norm1", "convolve.norm": "norm2", "attention.": "", "convolve.": ""}
    converted = {}
    for name, array in rename(weights, norms=("norm", "bn")).items():
        for old, new in table.items():
            name = name.replace(old, new)
        if name.endswith(("by_word", "by_place")):
            array = array[:, None]
        elif name.endswith("depth.weight"):
            array = array[:, :, None]
        converted[name] = array[..., 0] if name.endswith(("enter.weight", "leave.weight")) and array.ndim > 2 else array
    for path in [f"blocks.{number}.{{}}.{word}" for number in range(LAYERS) for word in ("weight", "bias")]:
        parts = [converted.pop(path.format(one)) for one in ("query", "key", "value")]  # @load
        converted[path.format("joined")] = np.concatenate(parts)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(5400 + step)
    x = random.normal(size=(4, TIME, BANDS)).astype(np.float32)
    teacher = 2 * random.normal(size=(4, FRAMES, CODES)).astype(np.float32)
    return x, np.array([11, 6, 9, 8]), random.integers(CODES, size=(4, FRAMES)), teacher


FAULTS = (
    Fault("places off by one", "shift", "FRAMES - 1 - np", "FRAMES - 2 - np", edit="index_made"),
    Fault(
        "places in the order of time",
        "place places",
        "np.arange(FRAMES - 1, -FRAMES, -1)",
        "np.arange(1 - FRAMES, FRAMES)",
        edit="steps_made",
    ),
    Fault("first half added whole", "first", "self.feed1(x) / 2", "self.feed1(x)"),
    Fault("gate on the other half", "halves glu", "left, right =", "right, left ="),
    Fault("empty frames not emptied", "emptied depth", "ops.sigmoid(right) * full", "ops.sigmoid(right)"),
    Fault("odd lengths rounded down", "empty masked", "((lengths + 1) // 2)", "(lengths // 2)"),
    Fault("bias of words for places", "far", "q + self.by_place", "q + self.by_word"),
    Fault("empty frames only a little lower", "masked", "* -1e9", "* -1.0"),
    Fault("frames after the channels", "flat enter_all", "h.transpose(0, 2, 1, 3)", "h.transpose(0, 2, 3, 1)"),
    Fault(
        "kernels of keys and values swapped",
        "project",
        '("query", "key", "value")',
        '("query", "value", "key")',
        edit="load",
        parameter="attention.key",
    ),
    Fault("distance not scaled by the heat", "loss", "HOT * HOT * (away", "(away"),
    Fault(
        "early head detached",
        "early head",
        "ops.log_softmax(early, -1)",
        "ops.log_softmax(ops.stop_gradient(early), -1)",
        is_backward=True,
    ),
    Fault("reference averages over all elements", "away", '"batchmean"', '"mean"', side="reference"),
    Fault(
        "divergence the other way round, and teacher not heated",
        "theirs",
        "ops.log_softmax(teacher / HOT, -1)",
        "ops.log_softmax(teacher, -1)",
        second=("away", "(ops.exp(theirs) * (theirs - ours))", "(ops.exp(ours) * (ours - theirs))"),
    ),
)
