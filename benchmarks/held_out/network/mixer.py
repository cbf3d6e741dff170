"""An MLP-Mixer that learns from labels, a centred teacher and itself; the port stacks the weights of its layers."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

LAYERS, PATCH, TOKENS, WIDTH, MIX, HIDDEN, CLASSES = 2, 4, 9, 12, 8, 20, 6
SMOOTHING, TEMPERATURE = 0.1, 2.0


class Mlp(torch.nn.Sequential):
    def __init__(self, width, hidden):
        super().__init__(torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.token, self.channel = Mlp(TOKENS, MIX), Mlp(WIDTH, HIDDEN)

    def forward(self, x):
        y = self.norm1(x).transpose(1, 2)  # @norm1
        x = x + self.token(y).transpose(1, 2)  # @token_up @token_down @first
        return x + self.channel(self.norm2(x))  # @norm2 @channel @second


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.layers = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.early, self.head = torch.nn.Linear(WIDTH, CLASSES), torch.nn.Linear(WIDTH, CLASSES)
        self.center = torch.zeros(CLASSES)

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2)  # @embed
        x = self.layers[0](x)
        early = self.early(x.mean(dim=1))  # @early
        x = self.norm(self.layers[1](x))  # @norm
        return early, self.head(x.mean(dim=1))  # @head


def compute_reference_loss(network, images, labels, teacher):
    early, logits = network(images)
    hard = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)  # @target @hard
    soft = F.softmax((teacher - network.center) / TEMPERATURE, dim=1)  # @soft
    student = F.log_softmax(logits / TEMPERATURE, dim=1)  # @student
    heated = F.kl_div(student, soft, reduction="batchmean") * TEMPERATURE**2  # @heated @square
    own = F.kl_div(F.log_softmax(early, 1), F.softmax(logits.detach(), 1), reduction="batchmean")  # @goal @own
    network.center = 0.9 * network.center + 0.1 * teacher.mean(dim=0)  # @update
    return hard + 0.5 * heated + 0.3 * own  # @loss


class Candidate(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Dense(3 * PATCH * PATCH, WIDTH)
        for name, shape in {
            "token_up": (MIX, TOKENS),
            "token_up_bias": (MIX, 1),
            "token_down": (TOKENS, MIX),
            "token_down_bias": (TOKENS, 1),
            "channel_up": (WIDTH, HIDDEN),
            "channel_up_bias": (HIDDEN,),
            "channel_down": (HIDDEN, WIDTH),
            "channel_down_bias": (WIDTH,),
            "gamma": (2, WIDTH),
            "beta": (2, WIDTH),
        }.items():
            setattr(self, name, ms.Parameter(ops.zeros((LAYERS, *shape)), name=name))
        self.normalize = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5)  # @made
        self.norm = nn.LayerNorm([WIDTH], epsilon=1e-5)
        self.early, self.head = nn.Dense(WIDTH, CLASSES), nn.Dense(WIDTH, CLASSES)
        self.center = ops.zeros((CLASSES,), ms.float32)

    def mix(self, x, n):
        y, _, _ = self.normalize(x, self.gamma[n, 0], self.beta[n, 0])  # @norm1
        y = ops.gelu(mint.matmul(self.token_up[n], y) + self.token_up_bias[n])  # @token_up
        x = x + mint.matmul(self.token_down[n], y) + self.token_down_bias[n]  # @token_down @first
        y, _, _ = self.normalize(x, self.gamma[n, 1], self.beta[n, 1])  # @norm2
        y = ops.gelu(mint.matmul(y, self.channel_up[n]) + self.channel_up_bias[n])  # @channel
        return x + mint.matmul(y, self.channel_down[n]) + self.channel_down_bias[n]  # @channel @second

    def construct(self, images):
        count = images.shape[-1] // PATCH
        patches = images.reshape(-1, 3, count, PATCH, count, PATCH).transpose(0, 2, 4, 1, 3, 5)  # @embed
        x = self.embed(patches.reshape(-1, TOKENS, 3 * PATCH * PATCH))  # @embed
        x = self.mix(x, 0)
        early = self.early(ops.mean(x, 1))  # @early
        x = self.norm(self.mix(x, 1))  # @norm
        return early, self.head(x.mean(axis=1))  # @head


def compute_candidate_loss(network, images, labels, teacher):
    early, logits = network(images)
    low = SMOOTHING / CLASSES  # @low
    target = ops.one_hot(labels, CLASSES, ms.Tensor(1 - SMOOTHING + low), ms.Tensor(low))  # @target
    hard = -(target * ops.log_softmax(logits)).sum(-1).mean()  # @hard
    wanted = ops.softmax((teacher - network.center) / TEMPERATURE)  # @soft
    student = ops.log_softmax(logits / TEMPERATURE)  # @student
    heated = ops.kl_div(student, wanted, reduction="batchmean")  # @heated
    goal = ops.log_softmax(ops.stop_gradient(logits))  # @goal
    apart = goal - ops.log_softmax(early)  # @own
    own = (mint.exp(goal) * apart).sum(-1).mean()  # @own
    network.center = network.center * 0.9 + teacher.mean(0) * 0.1  # @update
    return hard + 0.5 * TEMPERATURE**2 * heated + 0.3 * own  # @square @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if name.startswith(("early", "head"))}
    converted |= {"norm.gamma": weights["norm.weight"], "norm.beta": weights["norm.bias"]}
    converted |= {"embed.weight": weights["embed.weight"].reshape(WIDTH, -1), "embed.bias": weights["embed.bias"]}

    def stack(name: str) -> np.ndarray:
        return np.stack([weights[f"layers.{number}.{name}"] for number in range(LAYERS)])

    for number, end in enumerate(("up", "down")):
        converted[f"token_{end}"] = stack(f"token.{2 * number}.weight")
        converted[f"token_{end}_bias"] = stack(f"token.{2 * number}.bias")[..., None]
        converted[f"channel_{end}"] = stack(f"channel.{2 * number}.weight").swapaxes(1, 2)
        converted[f"channel_{end}_bias"] = stack(f"channel.{2 * number}.bias")
    for name, word in (("gamma", "weight"), ("beta", "bias")):
        converted[name] = np.stack([stack(f"norm1.{word}"), stack(f"norm2.{word}")], axis=1)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(2500 + step)
    images = random.normal(size=(4, 3, 12, 12)).astype(np.float32)
    teacher = random.normal(0.5, 2.0, size=(4, CLASSES)).astype(np.float32)
    return images, random.integers(CLASSES, size=4), teacher


FAULTS = (
    Fault("weights of the first layer in each layer", "token_up", "self.token_up[n]", "self.token_up[0]"),
    Fault(
        "smoothed over the other classes alone",
        "target hard",
        "SMOOTHING + low), ms.Tensor(low)",
        "SMOOTHING), ms.Tensor(SMOOTHING / (CLASSES - 1))",
    ),
    Fault("square of the temperature forgotten", "square", "TEMPERATURE**2 * heated", "heated"),
    Fault("divergence averaged over the classes", "heated", 'reduction="batchmean"', 'reduction="mean"'),
    Fault("goal not detached", "goal", "ops.stop_gradient(logits)", "logits", is_backward=True),
    Fault(
        "weights of the mean swapped",
        "update",
        "* 0.9 + teacher.mean(0) * 0.1",
        "* 0.1 + teacher.mean(0) * 0.9",
        steps=2,
        first_step=1,
    ),
    Fault(
        "teacher without temperature in the reference",
        "soft",
        "(teacher - network.center) / TEMPERATURE",
        "teacher - network.center",
        side="reference",
    ),
)
