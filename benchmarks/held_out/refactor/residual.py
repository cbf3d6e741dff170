"""A bottleneck and a block with a layer scale; channels last, plain functions and linear layers after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, STEM, MIDDLE, WIDTH, WIDE, CLASSES, BATCH = 16, 8, 6, 12, 24, 5, 5
EPSILON, MOMENTUM, FROZEN = 1e-3, 0.1, 1
"""Of batch norms: their statistics are frozen from that step on."""


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(STEM, MIDDLE, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(MIDDLE, eps=EPSILON, momentum=MOMENTUM)
        self.conv2 = nn.Conv2d(MIDDLE, MIDDLE, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(MIDDLE, eps=EPSILON, momentum=MOMENTUM)
        self.conv3 = nn.Conv2d(MIDDLE, WIDTH, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(WIDTH, eps=EPSILON, momentum=MOMENTUM)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(
            nn.Conv2d(STEM, WIDTH, 1, stride=2, bias=False), nn.BatchNorm2d(WIDTH, eps=EPSILON, momentum=MOMENTUM)
        )

    def forward(self, x):
        identity = self.downsample(x)  # @short @bn
        out = self.conv1(x)  # @conv1
        out = self.bn1(out)  # @bn
        out = self.relu(out)  # @relu1
        out = self.conv2(out)  # @conv2
        out = self.bn2(out)  # @bn
        out = self.relu(out)  # @relu2
        out = self.conv3(out)  # @conv3
        out = self.bn3(out)  # @bn
        out += identity  # @summed
        return self.relu(out)  # @relu3


class LayerNorm2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)  # @norm
        variance = (x - mean).pow(2).mean(1, keepdim=True)  # @norm
        x = (x - mean) / torch.sqrt(variance + EPSILON)  # @norm
        return self.weight[:, None, None] * x + self.bias[:, None, None]  # @norm


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.norm = LayerNorm2d()
        self.pwconv1, self.pwconv2 = nn.Conv2d(WIDTH, WIDE, 1), nn.Conv2d(WIDE, WIDTH, 1)
        self.act = nn.GELU()
        self.layer_scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        shortcut = x
        x = self.norm(self.dwconv(x))  # @deep @laid
        x = self.act(self.pwconv1(x))  # @wide @gelu
        x = self.pwconv2(x)  # @narrow
        x = self.layer_scale.view(1, -1, 1, 1) * x  # @layer_scale
        return shortcut + x  # @added


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(STEM, eps=EPSILON, momentum=MOMENTUM)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1, self.layer2 = Bottleneck(), ConvNeXtBlock()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.bn(self.stem(x))  # @stem @bn
        x = F.relu(x)  # @relu0
        x = self.maxpool(x)  # @maxpool
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)  # @pooled
        return self.fc(self.norm(x))  # @head_norm @head


def compute_reference_loss(network, images, labels, step):
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train(step < FROZEN)
    weight = torch.linspace(0.5, 1.5, CLASSES)
    return F.cross_entropy(network(images).float(), labels, weight=weight)  # @error @weighed @loss


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor, is_live: bool) -> Tensor:
        kept = (self.running_mean, self.running_var)
        return F.batch_norm(x, *kept, self.weight, self.bias, is_live, MOMENTUM, EPSILON)  # @bn


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.grow = nn.Conv2d(STEM, MIDDLE, 1, bias=False), nn.Conv2d(MIDDLE, WIDTH, 1, bias=False)
        self.middle = nn.Conv2d(MIDDLE, MIDDLE, 3, padding=1, bias=False)
        self.short = nn.Linear(STEM, WIDTH, bias=False)
        self.norms = nn.ModuleList([Norm(width) for width in (MIDDLE, MIDDLE, WIDTH, WIDTH)])

    def forward(self, x: Tensor, is_live: bool) -> Tensor:
        short = self.short(x[..., ::2, ::2].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # @short
        short = self.norms[3](short, is_live)  # @bn @short_norm
        y = F.relu_(self.norms[0](self.reduce(x), is_live))  # @conv1 @bn @relu1
        y = F.conv2d(y, self.middle.weight, stride=2, padding=1)  # @conv2
        y = F.relu_(self.norms[1](y, is_live))  # @bn @relu2
        y = self.norms[2](self.grow(y), is_live)  # @conv3 @bn
        return F.relu_(y.add_(short))  # @summed @relu3


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)  # @norm_made
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(x).permute(0, 2, 3, 1)  # @deep @laid
        y = F.gelu(self.up(self.norm(y)))  # @norm @wide @gelu
        y = self.down(y).mul(self.scale)  # @narrow @layer_scale
        return x + y.permute(0, 3, 1, 2)  # @added


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, STEM, 3, padding=1, bias=False), Norm(STEM)
        self.stage, self.mix = Stage(), Mix()
        self.norm, self.classify = nn.LayerNorm(WIDTH, eps=EPSILON), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor, is_live: bool) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        x = F.relu_(self.stem_norm(self.stem(x), is_live))  # @stem @bn @relu0
        x = F.max_pool2d(x, 3, 2, 1)  # @maxpool
        x = self.mix(self.stage(x, is_live))
        pooled = x.mean(dim=(2, 3))  # @pooled
        return self.classify(self.norm(pooled))  # @head_norm @head


def compute_candidate_loss(network, images, labels, step):
    logits = network(images, step < FROZEN).float()  # @live
    error = logits.logsumexp(dim=1) - logits.gather(1, labels[:, None])[:, 0]  # @error
    weight = torch.linspace(0.5, 1.5, CLASSES)[labels]  # @weighed
    return (error * weight).sum() / weight.sum()  # @loss


def convert(weights: Weights) -> Weights:
    names = {"stem": "stem", "bn": "stem_norm", "norm": "norm", "fc": "classify", "layer1.conv1": "stage.reduce"}
    names |= {"layer1.conv2": "stage.middle", "layer1.conv3": "stage.grow", "layer1.downsample.0": "stage.short"}
    names |= {f"layer1.bn{number + 1}": f"stage.norms.{number}" for number in range(3)}
    names |= {"layer1.downsample.1": "stage.norms.3", "layer2.dwconv": "mix.depth", "layer2.norm": "mix.norm"}
    names |= {"layer2.pwconv1": "mix.up", "layer2.pwconv2": "mix.down"}
    converted = {"mix.scale": weights["layer2.layer_scale"]}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        if path in names:
            is_linear = names[path] in ("mix.up", "mix.down", "stage.short") and word == "weight"
            converted[f"{names[path]}.{word}"] = array[:, :, 0, 0] if is_linear else array
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8300 + step)
    images = random.normal(0.2, 1.0, size=(BATCH, 3, SIDE, SIDE)).astype(np.float32)
    return images, random.integers(CLASSES, size=BATCH)


FAULTS = (
    Fault(
        "momentum counted the other way",
        "bn",
        "is_live, MOMENTUM, EPSILON",
        "is_live, 1 - MOMENTUM, EPSILON",
        steps=2,
        first_step=1,
    ),
    Fault("statistics not frozen", "bn", "step < FROZEN", "True", edit="live", steps=2, first_step=1),
    Fault("epsilon of the library", "norm", ", eps=EPSILON", "", edit="norm_made"),
    Fault("pool without padding", "maxpool", "F.max_pool2d(x, 3, 2, 1)", "F.max_pool2d(x, 3, 2, 0, ceil_mode=True)"),
    Fault("odd pixels for the shortcut", "short", "x[..., ::2, ::2]", "x[..., 1::2, 1::2]"),
    Fault("shortcut not normed", "short_norm bn summed", "self.norms[3](short, is_live)", "short", edit="short_norm"),
    Fault("activation before the sum", "summed relu3", "F.relu_(y.add_(short))", "F.relu_(y) + short"),
    Fault(
        "rows and columns exchanged", "laid deep added", "permute(0, 2, 3, 1)", "permute(0, 3, 2, 1)", has_effect=False
    ),
    Fault("scale of a layer left out", "layer_scale added", ".mul(self.scale)", ""),
    Fault("shortcut passes no gradient", "added relu3", "return x + y", "return x.detach() + y", is_backward=True),
    Fault("weights not in the mean", "loss", "/ weight.sum()", "/ len(weight)"),
    Fault("reference has no activation after the stem", "relu0 maxpool", "F.relu(x)", "x", side="reference"),
)
