"""A residual U-Net of volumes with gated skips and two outputs: dice and cross-entropy, products for narrow kernels."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

WIDTHS, INNER, CLASSES, SIDE, DEPTH, BATCH = (3, 5, 7), 4, 4, 8, 4, 2
STRIDES = (1, (1, 2, 2), 2)
SLOPE, EPSILON, IGNORED, SMOOTH = 0.01, 1e-5, 255, 1e-2
HEAVY, LEVELS = (0.4, 1.0, 1.5, 2.0), (2 / 3, 1 / 3)


class ResBlock(torch.nn.Module):
    def __init__(self, in_channels, out_channels, stride) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv3d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = torch.nn.InstanceNorm3d(out_channels, affine=True)
        self.conv2 = torch.nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = torch.nn.InstanceNorm3d(out_channels, affine=True)
        self.pool = torch.nn.AvgPool3d(stride, stride)
        self.proj = torch.nn.Conv3d(in_channels, out_channels, 1, bias=False)

    def forward(self, x):
        h = F.leaky_relu(self.norm1(self.conv1(x)), SLOPE)  # @conv1 @mean @variance @norm @leaky1
        h = self.norm2(self.conv2(h))  # @conv2 @mean @variance @norm
        skip = self.proj(self.pool(x))  # @pooled @projected
        return F.leaky_relu(h + skip, SLOPE)  # @added @leaky2


class AttentionGate(torch.nn.Module):
    def __init__(self, channels, gating) -> None:
        super().__init__()
        self.w_x = torch.nn.Conv3d(channels, INNER, 1, bias=False)
        self.w_g = torch.nn.Conv3d(gating, INNER, 1)
        self.psi = torch.nn.Conv3d(INNER, 1, 1)

    def forward(self, skip, gating):
        h = F.relu(self.w_x(skip) + self.w_g(gating))  # @asked @joined
        return skip * torch.sigmoid(self.psi(h))  # @chance @gated


class ConvBlock(torch.nn.Module):
    def __init__(self, in_channels, out_channels) -> None:
        super().__init__()
        self.conv = torch.nn.Conv3d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = torch.nn.InstanceNorm3d(out_channels, affine=True)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)), SLOPE)  # @decoded @mean @variance @norm @leaky3


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleList(map(ResBlock, (1, *WIDTHS[:-1]), WIDTHS, STRIDES))
        self.up1 = torch.nn.ConvTranspose3d(WIDTHS[2], WIDTHS[1], 2, stride=2)
        self.up0 = torch.nn.Conv3d(WIDTHS[1], WIDTHS[0], 1)
        self.gate1 = AttentionGate(WIDTHS[1], WIDTHS[1])
        self.gate0 = AttentionGate(WIDTHS[0], WIDTHS[0])
        self.decoder1 = ConvBlock(2 * WIDTHS[1], WIDTHS[1])
        self.decoder0 = ConvBlock(2 * WIDTHS[0], WIDTHS[0])
        self.head1 = torch.nn.Conv3d(WIDTHS[1], CLASSES, 1)
        self.head0 = torch.nn.Conv3d(WIDTHS[0], CLASSES, 1)

    def forward(self, volume):
        skip0 = self.encoder[0](volume)
        skip1 = self.encoder[1](skip0)
        x = self.up1(self.encoder[2](skip1))  # @grown @shuffled
        x = self.decoder1(torch.cat([self.gate1(skip1, x), x], dim=1))  # @beside @decoded
        low = self.head1(x)  # @low
        x = F.interpolate(x, scale_factor=(1, 2, 2), mode="trilinear", align_corners=False)  # @upsampled
        x = self.up0(x)  # @narrowed @upsampled
        x = self.decoder0(torch.cat([self.gate0(skip0, x), x], dim=1))  # @beside @decoded
        return self.head0(x), low  # @high


def dice_loss(logits, target, valid):
    probs = logits.softmax(dim=1) * valid  # @soft @valid
    onehot = F.one_hot(target, CLASSES).movedim(-1, 1) * valid  # @onehot
    dims = (0, 2, 3, 4)
    intersection = (probs * onehot).sum(dims)  # @common
    union = probs.sum(dims) + onehot.sum(dims)  # @union
    dice = (2 * intersection + SMOOTH) / (union + SMOOTH)  # @dice
    return 1 - dice[1:].mean()  # @missed


def compute_reference_loss(network, volume, labels):
    loss, heavy = 0.0, torch.tensor(HEAVY)
    for logits, share in zip(network(volume), LEVELS, strict=True):
        goal = F.interpolate(labels[:, None].float(), size=logits.shape[2:], mode="nearest")[:, 0].long()  # @picked
        entropy = F.cross_entropy(logits, goal, weight=heavy, ignore_index=IGNORED)  # @soft @heavy @entropy
        valid = goal != IGNORED  # @valid
        dice = dice_loss(logits, goal.masked_fill(~valid, 0), valid[:, None].float())
        loss = loss + share * (entropy + dice)  # @level @summed
    return loss


class InstanceNorm(nn.Cell):
    """The library's has no kernel here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = Parameter(ops.ones((width, 1, 1, 1)), name="gamma")
        self.beta = Parameter(ops.zeros((width, 1, 1, 1)), name="beta")
        self.axes = (2, 3, 4)  # @axes_made

    def construct(self, x: Tensor) -> Tensor:
        centred = x - x.mean(self.axes, keep_dims=True)  # @mean
        variance = ops.square(centred).mean(self.axes, keep_dims=True)  # @variance
        return centred * ops.rsqrt(variance + EPSILON) * self.gamma + self.beta  # @norm


def convolve(enter: int, leave: int, stride=1) -> nn.Conv3d:
    return nn.Conv3d(enter, leave, 3, stride, pad_mode="pad", padding=1)


class Encode(nn.Cell):
    def __init__(self, enter: int, leave: int, stride) -> None:
        super().__init__()
        self.first, self.second = convolve(enter, leave, stride), convolve(leave, leave)
        self.norms = nn.CellList([InstanceNorm(leave), InstanceNorm(leave)])
        self.pool = nn.AvgPool3d(stride, stride)  # @pool_made
        self.short = nn.Dense(enter, leave, has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.first(x))  # @conv1
        h = self.second(ops.leaky_relu(h, SLOPE))  # @leaky1 @conv2
        h = self.norms[1](h)
        short = self.pool(x)  # @pooled
        short = self.short(short.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)  # @projected
        return ops.leaky_relu(h + short, SLOPE)  # @added @leaky2


class Decode(nn.Cell):
    """The skip is weighed by a look at both, then both are convolved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.look, self.weigh = nn.Dense(2 * width, INNER), nn.Dense(INNER, 1)
        self.conv, self.norm = convolve(2 * width, width), InstanceNorm(width)

    def construct(self, skip: Tensor, x: Tensor) -> Tensor:
        both = ops.cat((skip, x), 1)  # @joined
        h = ops.relu(self.look(both.permute(0, 2, 3, 4, 1)))  # @asked
        chance = ops.sigmoid(self.weigh(h)).permute(0, 4, 1, 2, 3)  # @chance
        both = ops.cat((skip * chance, x), 1)  # @gated @beside
        return ops.leaky_relu(self.norm(self.conv(both)), SLOPE)  # @decoded @leaky3


def make_stretch() -> Tensor:
    """A side of a plane becomes twice as long."""
    half = SIDE // 2
    table = np.zeros((SIDE, half), np.float32)
    for row in range(SIDE):
        place = max((row + 0.5) / 2 - 0.5, 0)  # @place_made
        low = int(place)
        table[row, low] += 1 - (place - low)
        table[row, min(low + 1, half - 1)] += place - low
    return Tensor(table)


class Candidate(nn.Cell):
    """What has no neighbours is a product, with channels last; planes are stretched behind the narrow layer."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.CellList([Encode(*one) for one in zip((1, *WIDTHS[:-1]), WIDTHS, STRIDES, strict=True)])
        self.grow = nn.Dense(WIDTHS[2], 8 * WIDTHS[1], has_bias=False)
        self.grow_bias = Parameter(ops.zeros((WIDTHS[1], 1, 1, 1)), name="grow_bias")
        self.narrow = nn.Dense(WIDTHS[1], WIDTHS[0])
        self.low, self.high = Decode(WIDTHS[1]), Decode(WIDTHS[0])
        self.tell_low, self.tell_high = nn.Dense(WIDTHS[1], CLASSES), nn.Dense(WIDTHS[0], CLASSES)
        self.stretch = make_stretch()

    def double(self, x: Tensor) -> Tensor:
        x = self.grow(x.permute(0, 2, 3, 4, 1))  # @grown
        x = x.reshape(*x.shape[:-1], 2, 2, 2, WIDTHS[1])
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(BATCH, WIDTHS[1], DEPTH, SIDE // 2, SIDE // 2)  # @shuffled
        return x + self.grow_bias  # @grown

    def construct(self, volume: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.down[0](volume)
        coarse = self.down[1](fine)
        x = self.low(coarse, self.double(self.down[2](coarse)))
        x = x.permute(0, 2, 3, 4, 1)
        low = self.tell_low(x)  # @low
        x = self.narrow(x).permute(0, 4, 1, 2, 3)  # @narrowed
        x = ops.matmul(ops.matmul(self.stretch, x), self.stretch.T)  # @upsampled
        x = self.high(fine, x)
        return self.tell_high(x.permute(0, 2, 3, 4, 1)), low  # @high


def miss(logits: Tensor, goal: Tensor) -> Tensor:
    """No class is one where a voxel is ignored."""
    classes = ops.arange(CLASSES).astype(ms.int32)
    right = (goal.expand_dims(-1) == classes).astype(ms.float32).reshape(-1, CLASSES)  # @onehot
    known = right.sum(1, keepdims=True)  # @valid
    logits = logits.reshape(-1, CLASSES)
    logs = ops.log_softmax(logits, -1)  # @soft
    heavy = right * Tensor(HEAVY, ms.float32)  # @heavy
    entropy = -(heavy * logs).sum() / heavy.sum()  # @entropy
    chances = ops.exp(logs) * known  # @soft @valid
    common = (chances * right).sum(0)  # @common
    union = chances.sum(0) + right.sum(0)  # @union
    dice = (2 * common + SMOOTH) / (union + SMOOTH)  # @dice
    return entropy + 1 - dice[1:].mean()  # @missed @summed


def compute_candidate_loss(network, volume, labels):
    high, low = network(volume)
    large = miss(high, labels)
    small = miss(low, labels[:, :, ::2, ::2])  # @picked
    return LEVELS[0] * large + LEVELS[1] * small  # @level @summed


def convert(weights: Weights) -> Weights:
    converted = {}

    def flatten(new: str, old: str) -> None:
        converted[f"{new}.weight"] = weights[f"{old}.weight"].reshape(weights[f"{old}.weight"].shape[:2])
        if f"{old}.bias" in weights:
            converted[f"{new}.bias"] = weights[f"{old}.bias"]

    def rename(new: str, old: str) -> None:
        converted[f"{new}.gamma"] = weights[f"{old}.weight"].reshape(-1, 1, 1, 1)
        converted[f"{new}.beta"] = weights[f"{old}.bias"].reshape(-1, 1, 1, 1)

    for number in range(len(WIDTHS)):
        old, new = f"encoder.{number}", f"down.{number}"
        flatten(f"{new}.short", f"{old}.proj")
        for place, word in enumerate(("first", "second")):
            converted[f"{new}.{word}.weight"] = weights[f"{old}.conv{place + 1}.weight"]
            rename(f"{new}.norms.{place}", f"{old}.norm{place + 1}")
    for number, new in enumerate(("high", "low")):
        gate = f"gate{number}"
        parts = [weights[f"{gate}.{word}.weight"] for word in ("w_x", "w_g")]
        converted[f"{new}.look.weight"] = np.concatenate(parts, axis=1).reshape(INNER, -1)
        converted[f"{new}.look.bias"] = weights[f"{gate}.w_g.bias"]
        flatten(f"{new}.weigh", f"{gate}.psi")
        flatten(f"tell_{new}", f"head{number}")
        converted[f"{new}.conv.weight"] = weights[f"decoder{number}.conv.weight"]
        rename(f"{new}.norm", f"decoder{number}.norm")
    grow = weights["up1.weight"]
    converted["grow.weight"] = grow.transpose(2, 3, 4, 1, 0).reshape(-1, WIDTHS[2])  # @load
    converted["grow_bias"] = weights["up1.bias"].reshape(-1, 1, 1, 1)
    flatten("narrow", "up0")
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8600 + step)
    volume = random.normal(size=(BATCH, 1, DEPTH, SIDE, SIDE)).astype(np.float32)
    bright = volume[:, 0] + 0.5 * np.roll(volume[:, 0], 1, axis=-1)
    labels = np.digitize(bright, [-0.3, 0.6, 1.3]).astype(np.int64)
    labels[:, :, :2] = np.where(random.random((BATCH, DEPTH, 2, SIDE)) < 0.5, IGNORED, labels[:, :, :2])
    return volume, labels


FAULTS = (
    Fault(
        "corners aligned",
        "upsampled",
        "(row + 0.5) / 2 - 0.5",
        "row * (half - 1) / (SIDE - 1)",
        edit="place_made",
    ),
    Fault("statistics of the whole batch", "mean variance", "(2, 3, 4)", "(0, 2, 3, 4)", edit="axes_made"),
    Fault("default slope between the convolutions", "leaky1 conv2", "ops.leaky_relu(h, SLOPE)", "ops.leaky_relu(h)"),
    Fault("a bias before the norm", "conv1", "self.first(x)", "self.first(x) + 0.3", has_effect=False),
    Fault("skips pooled by their largest", "pooled", "nn.AvgPool3d", "nn.MaxPool3d", edit="pool_made"),
    Fault(
        "channels before taps",
        "grown shuffled",
        "grow.transpose(2, 3, 4, 1, 0)",
        "grow.transpose(1, 2, 3, 4, 0)",
        edit="load",
        parameter="up1",
    ),
    Fault("what comes from below is gated", "gated beside", "(skip * chance, x)", "(skip, x * chance)"),
    Fault(
        "gate passes no gradient",
        "gated chance",
        "ops.sigmoid(self.weigh(h)).permute(0, 4, 1, 2, 3)",
        "ops.stop_gradient(ops.sigmoid(self.weigh(h)).permute(0, 4, 1, 2, 3))",
        edit="chance",
        is_backward=True,
    ),
    Fault(
        "lower output trains its head alone",
        "low",
        "self.tell_low(x)",
        "self.tell_low(ops.stop_gradient(x))",
        is_backward=True,
    ),
    Fault(
        "what dice divides by is constant",
        "union dice",
        "chances.sum(0) + right.sum(0)",
        "ops.stop_gradient(chances.sum(0)) + right.sum(0)",
        is_backward=True,
    ),
    Fault("ignored voxels count in the chances", "valid union", "ops.exp(logs) * known", "ops.exp(logs)"),
    Fault("entropy over all voxels alike", "entropy", "/ heavy.sum()", "/ known.sum()"),
    Fault("lower labels from the odd places", "picked onehot", "[:, :, ::2, ::2]", "[:, :, 1::2, 1::2]"),
    Fault(
        "reference has the background in its dice",
        "missed",
        "dice[1:].mean()",
        "dice.mean()",
        side="reference",
    ),
    Fault(
        "reference weighs all classes alike",
        "heavy entropy",
        "weight=heavy, ",
        "",
        side="reference",
    ),
    Fault(
        "residual dropped, and shares of the outputs exchanged",
        "added leaky2",
        "ops.leaky_relu(h + short, SLOPE)",
        "ops.leaky_relu(h, SLOPE)",
        second=("level", "LEVELS[0] * large + LEVELS[1] * small", "LEVELS[1] * large + LEVELS[0] * small"),
    ),
)
