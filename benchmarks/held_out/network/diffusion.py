"""A U-Net that guesses the noise of pictures: attention by channels in the reference, by tokens in the port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

BASE, WIDE, TIME, GROUPS, HEADS, CLASSES, SIZE, STEPS, BATCH = 8, 16, 16, 4, 2, 4, 8, 50, 3


def embed_time(t, width):
    half = width // 2
    speeds = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)  # @speeds
    angles = t[:, None].float() * speeds[None]  # @angles
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)  # @waves


class ResBlock(torch.nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.in_layers = torch.nn.Sequential(
            torch.nn.GroupNorm(GROUPS, enter), torch.nn.SiLU(), torch.nn.Conv2d(enter, leave, 3, padding=1)
        )
        self.emb_layers = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(TIME, leave))
        self.out_layers = torch.nn.Sequential(
            torch.nn.GroupNorm(GROUPS, leave), torch.nn.SiLU(), torch.nn.Conv2d(leave, leave, 3, padding=1)
        )
        self.skip = torch.nn.Identity() if enter == leave else torch.nn.Conv2d(enter, leave, 1)

    def forward(self, x, emb):
        h = self.in_layers(x)  # @in_norm @in_silu @in_conv
        h = h + self.emb_layers(emb)[:, :, None, None]  # @emb_silu @emb @timed
        h = self.out_layers(h)  # @out_norm @out_silu @out_conv
        return self.skip(x) + h  # @skip @added


class AttentionBlock(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(GROUPS, width)
        self.qkv = torch.nn.Conv1d(width, 3 * width, 1)
        self.proj = torch.nn.Conv1d(width, width, 1)

    def forward(self, x):
        batch, width, *space = x.shape
        x = x.reshape(batch, width, -1)
        qkv = self.qkv(self.norm(x))  # @attention_norm @qkv
        size = width // HEADS
        query, key, value = qkv.reshape(batch * HEADS, 3 * size, -1).split(size, dim=1)  # @heads
        scale = 1 / math.sqrt(math.sqrt(size))
        weight = torch.einsum("bct,bcs->bts", query * scale, key * scale)  # @scores
        weight = torch.softmax(weight, dim=-1)  # @soft
        h = torch.einsum("bts,bcs->bct", weight, value).reshape(batch, width, -1)  # @mixed
        return (x + self.proj(h)).reshape(batch, width, *space)  # @proj @attended


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time_embed = torch.nn.Sequential(torch.nn.Linear(BASE, TIME), torch.nn.SiLU(), torch.nn.Linear(TIME, TIME))
        self.label_emb = torch.nn.Embedding(CLASSES + 1, TIME)
        self.enter = torch.nn.Conv2d(3, BASE, 3, padding=1)
        self.down1 = ResBlock(BASE, BASE)
        self.shrink = torch.nn.Conv2d(BASE, BASE, 3, stride=2)
        self.down2 = ResBlock(BASE, WIDE)
        self.attention = AttentionBlock(WIDE)
        self.middle = ResBlock(WIDE, WIDE)
        self.grow = torch.nn.Conv2d(WIDE, WIDE, 3, padding=1)
        self.up = ResBlock(WIDE + BASE, BASE)
        self.out = torch.nn.Sequential(
            torch.nn.GroupNorm(GROUPS, BASE), torch.nn.SiLU(), torch.nn.Conv2d(BASE, 3, 3, padding=1)
        )

    def forward(self, x, t, labels):
        emb = self.time_embed(embed_time(t, BASE))  # @time_embed
        emb = emb + self.label_emb(labels)  # @label @conditioned
        first = self.down1(self.enter(x), emb)  # @enter
        h = self.shrink(F.pad(first, (0, 1, 0, 1)))  # @shrink
        h = self.middle(self.attention(self.down2(h, emb)), emb)
        h = self.grow(F.interpolate(h, scale_factor=2, mode="nearest"))  # @grown @grow
        h = self.up(torch.cat([h, first], dim=1), emb)  # @joined
        return self.out(h)  # @out


def compute_reference_loss(network, images, noise, t, labels, is_dropped):
    betas = torch.linspace(1e-3, 0.1, STEPS)  # @betas
    kept = torch.cumprod(1 - betas, dim=0)[t].view(-1, 1, 1, 1)  # @kept
    noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise  # @noisy
    labels = torch.where(is_dropped, torch.full_like(labels, CLASSES), labels)  # @dropped
    return F.mse_loss(network(noisy, t, labels), noise)  # @error @loss


class ResidualCell(nn.Cell):
    def __init__(self, enter: int, leave: int, groups: int = GROUPS) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, enter)
        self.conv1 = nn.Conv2d(enter, leave, 3, pad_mode="pad", padding=1, has_bias=True)
        self.time = nn.Dense(TIME, leave)
        self.norm2 = nn.GroupNorm(groups, leave)
        self.conv2 = nn.Conv2d(leave, leave, 3, pad_mode="pad", padding=1, has_bias=True)
        self.short = None if enter == leave else nn.Conv2d(enter, leave, 1, has_bias=True)

    def construct(self, x, active):
        h = ops.silu(self.norm1(x))  # @in_norm @in_silu
        h = self.conv1(h)  # @in_conv
        h = h + self.time(active).reshape(len(x), -1, 1, 1)  # @emb @timed
        h = self.norm2(h)  # @out_norm
        h = self.conv2(h * ops.sigmoid(h))  # @out_silu @out_conv
        if self.short is not None:
            x = self.short(x)  # @skip
        return h + x  # @added


class TokenAttention(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)

    def construct(self, x):
        batch, width, height, across = x.shape
        tokens = self.norm(x).reshape(batch, width, -1).swapaxes(1, 2)  # @attention_norm @tokens
        qkv = self.qkv(tokens).reshape(batch, -1, 3, HEADS, width // HEADS)  # @qkv
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # @heads
        scores = ops.bmm(query, key.swapaxes(-1, -2)) / math.sqrt(width // HEADS)  # @scores
        mixed = ops.bmm(ops.softmax(scores, -1), value)  # @soft @mixed
        h = self.proj(mixed.swapaxes(1, 2).reshape(batch, -1, width))  # @proj
        return x + h.swapaxes(1, 2).reshape(batch, width, height, across)  # @attended


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        half = BASE // 2
        angles = np.outer(np.arange(STEPS), 10000.0 ** (-np.arange(half) / half))  # @angles_made
        self.waves = ms.Tensor(np.concatenate([np.cos(angles), np.sin(angles)], 1), ms.float32)  # @waves_made
        self.time1, self.time2 = nn.Dense(BASE, TIME, activation=nn.SiLU()), nn.Dense(TIME, TIME)
        self.label = nn.Embedding(CLASSES + 1, TIME)
        self.enter = nn.Conv2d(3, BASE, 3, pad_mode="pad", padding=1, has_bias=True)
        self.down1, self.down2 = ResidualCell(BASE, BASE), ResidualCell(BASE, WIDE)
        self.shrink = nn.Conv2d(BASE, BASE, 3, 2, pad_mode="same", has_bias=True)  # @shrink_made
        self.attention = TokenAttention(WIDE)
        self.middle = ResidualCell(WIDE, WIDE)  # @middle_made
        self.grow = nn.Conv2d(WIDE, WIDE, 3, pad_mode="same", has_bias=True)
        self.up = ResidualCell(WIDE + BASE, BASE)
        self.norm = nn.GroupNorm(GROUPS, BASE)
        self.leave = nn.Conv2d(BASE, 3, 3, pad_mode="same", has_bias=True)

    def construct(self, x, t, labels):
        emb = self.time2(self.time1(ops.gather(self.waves, t, 0)))  # @waves @angles @speeds @time_embed
        emb = emb + self.label(labels)  # @label @conditioned
        active = ops.silu(emb)  # @emb_silu
        first = self.down1(self.enter(x), active)  # @enter
        h = self.down2(self.shrink(first), active)  # @shrink
        h = self.attention(h)
        h = self.middle(h, active)
        h = ops.interpolate(h, size=(SIZE, SIZE), mode="nearest")  # @grown
        h = self.grow(h)  # @grow
        h = self.up(ops.cat((h, first), 1), active)  # @joined
        return self.leave(ops.silu(self.norm(h)))  # @out


def compute_candidate_loss(network, images, noise, t, labels, is_dropped):
    kept = np.cumprod(1 - np.linspace(1e-3, 0.1, STEPS))  # @made
    signal = ops.gather(ms.Tensor(np.sqrt(kept), ms.float32), t, 0).reshape(-1, 1, 1, 1)  # @kept
    spread = ops.gather(ms.Tensor(np.sqrt(1 - kept), ms.float32), t, 0).reshape(-1, 1, 1, 1)  # @kept @spread
    noisy = signal * images + spread * noise  # @noisy
    labels = labels.masked_fill(is_dropped, CLASSES)  # @dropped
    error = network(noisy, t, labels) - noise  # @error
    return ops.square(error).mean((1, 2, 3)).mean()  # @loss


def convert(weights: Weights) -> Weights:
    names = {"time_embed.0": "time1", "time_embed.2": "time2", "out.0": "norm", "out.2": "leave"}
    names |= {"in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time"}
    names |= {"out_layers.0": "norm2", "out_layers.2": "conv2", "skip": "short"}
    converted = {}
    for name, array in weights.items():
        for old, new in names.items():
            if name.startswith(f"{old}.") or f".{old}." in name:
                name = name.replace(old, new)
        path, _, word = name.rpartition(".")
        if "norm" in path:
            name = f"{path}.{'gamma' if word == 'weight' else 'beta'}"
        converted[name] = array
    converted["label.embedding_table"] = converted.pop("label_emb.weight")
    for word in ("weight", "bias"):
        rows = weights[f"attention.qkv.{word}"]
        parts = rows.reshape(HEADS, 3, WIDE // HEADS, -1).swapaxes(0, 1)  # @load
        converted[f"attention.qkv.{word}"] = parts.reshape(rows.shape[:2])
    converted["attention.proj.weight"] = weights["attention.proj.weight"][:, :, 0]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7500 + step)
    images, noise = random.normal(size=(2, BATCH, 3, SIZE, SIZE)).astype(np.float32)
    t = random.permutation(STEPS - 2)[:BATCH] + 1
    return images, noise, t, random.integers(CLASSES, size=BATCH), np.array([False, True, False])


FAULTS = (
    Fault(
        "sines before cosines",
        "waves time_embed",
        "[np.cos(angles), np.sin(angles)]",
        "[np.sin(angles), np.cos(angles)]",
        edit="waves_made",
    ),
    Fault(
        "speeds to the last one",
        "speeds angles waves",
        "-np.arange(half) / half",
        "-np.arange(half) / (half - 1)",
        edit="angles_made",
    ),
    Fault("time not activated", "emb_silu emb", "active = ops.silu(emb)", "active = emb"),
    Fault(
        "convolution padded on both sides", "shrink", 'pad_mode="same"', 'pad_mode="pad", padding=1', edit="shrink_made"
    ),
    Fault("two groups in the middle", "in_norm out_norm", "(WIDE, WIDE)", "(WIDE, WIDE, 2)", edit="middle_made"),
    Fault(
        "pixels laid out as tokens",
        "tokens qkv attention_norm",
        ".reshape(batch, width, -1).swapaxes(1, 2)",
        ".reshape(batch, -1, width)",
    ),
    Fault("scale of all heads together", "scores", "math.sqrt(width // HEADS)", "math.sqrt(width)"),
    Fault(
        "rows of heads not reordered",
        "qkv heads scores",
        ".reshape(HEADS, 3, WIDE // HEADS, -1).swapaxes(0, 1)",
        "",
        edit="load",
        parameter="attention.qkv",
    ),
    Fault("grown with bilinear weights", "grown grow", 'mode="nearest"', 'mode="bilinear"'),
    Fault("skip before the rest", "joined in_norm skip", "(h, first)", "(first, h)"),
    Fault(
        "skip passes no gradient",
        "joined added",
        "(h, first)",
        "(h, ops.stop_gradient(first))",
        is_backward=True,
    ),
    Fault("noise by its variance", "kept spread noisy", "np.sqrt(1 - kept)", "1 - kept", edit="spread"),
    Fault(
        "schedule begins with one",
        "kept noisy",
        "np.cumprod(1 - np.linspace(1e-3, 0.1, STEPS))",
        "np.concatenate([[1.0], np.cumprod(1 - np.linspace(1e-3, 0.1, STEPS))])",
        edit="made",
    ),
    Fault(
        "reference takes roots of the betas",
        "betas kept noisy",
        "torch.linspace(1e-3, 0.1, STEPS)",
        "torch.linspace(1e-3**0.5, 0.1**0.5, STEPS) ** 2",
        side="reference",
    ),
    Fault(
        "no residual around attention, and a sum for the loss",
        "attended in_norm",
        "return x + h.swapaxes",
        "return h.swapaxes",
        second=("loss", ".mean((1, 2, 3)).mean()", ".sum((1, 2, 3)).mean()"),
    ),
)
