"""A transformer of pictures: convolved patches, one table of places; unfolded ones and half a batch at a time after."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, PATCH, CHANNELS, WIDTH, HEADS, HIDDEN, LAYERS, CLASSES, BATCH = 12, 4, 3, 24, 3, 40, 2, 7, 6
COUNT, SIZE, SMOOTH, EPSILON, PARTS = (SIDE // PATCH) ** 2, WIDTH // HEADS, 0.1, 1e-6, 2


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(CHANNELS, WIDTH, kernel_size=PATCH, stride=PATCH)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)  # @cut @patched


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, count, width = x.shape
        qkv = self.qkv(x).reshape(batch, count, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)  # @query @key @value
        q, k, v = qkv.unbind(0)
        q = q * SIZE**-0.5  # @scaled
        attn = q @ k.transpose(-2, -1)  # @scores
        attn = attn.softmax(dim=-1)  # @soft
        x = attn @ v  # @mixed
        x = x.transpose(1, 2).reshape(batch, count, width)
        return self.proj(x)  # @out


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.act = nn.GELU()

    def forward(self, x):
        x = self.act(self.fc1(x))  # @wide @gelu
        return self.fc2(x)  # @narrow


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=EPSILON), nn.LayerNorm(WIDTH, eps=EPSILON)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))  # @norm1 @added
        return x + self.mlp(self.norm2(x))  # @norm2 @added2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, COUNT + 1, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)  # @joined @first
        x = x + self.pos_embed  # @placed @first
        x = self.blocks(x)
        x = self.norm(x)  # @norm3
        return self.head(x[:, 0])  # @chosen @head


def compute_reference_loss(network, images, labels):
    return F.cross_entropy(network(images).float(), labels, label_smoothing=SMOOTH)  # @logs @smooth @loss


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * WIDTH, WIDTH))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        self.up = nn.Parameter(torch.zeros(WIDTH, HIDDEN))
        self.up_bias = nn.Parameter(torch.zeros(HIDDEN))
        self.down = nn.Linear(HIDDEN, WIDTH)

    def project(self, x: Tensor, part: int) -> Tensor:
        rows = slice(part * WIDTH, (part + 1) * WIDTH)
        y = F.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])  # @query @key @value
        return y.unflatten(-1, (HEADS, SIZE))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x, 0), self.project(x, 1), self.project(x, 2)  # @query @key @value
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / SIZE**0.5  # @scores @scaled
        chances = F.softmax(scores, dim=-1)  # @soft
        return self.out(torch.einsum("bhqk,bkhd->bqhd", chances, v).flatten(2))  # @mixed @out

    def feed(self, x: Tensor) -> Tensor:
        h = torch.addmm(self.up_bias, x.flatten(0, 1), self.up)  # @wide
        return self.down(F.gelu(h)).view_as(x)  # @gelu @narrow

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.attend(self.ln1(x))  # @norm1 @added
        return y + self.feed(self.ln2(y))  # @norm2 @added2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(CHANNELS * PATCH**2, WIDTH)
        self.class_token, self.class_place = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.places = nn.Parameter(torch.zeros(COUNT, WIDTH))
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.ln, self.classify = nn.LayerNorm(WIDTH, EPSILON), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)  # @cut
        x = self.embed(patches) + self.places  # @patched @placed
        first = self.class_token + self.class_place  # @first
        x = torch.cat((first.expand(len(x), 1, WIDTH), x), dim=1)  # @joined
        for layer in self.layers:
            x = layer(x)
        return self.classify(self.ln(x[:, 0]))  # @chosen @norm3 @head


def smooth_loss(logits: Tensor, labels: Tensor) -> Tensor:
    logs = logits.float().log_softmax(dim=-1)  # @logs
    goal = torch.full_like(logs, SMOOTH / CLASSES)  # @smooth
    goal.scatter_add_(1, labels[:, None], torch.full_like(logs[:, :1], 1 - SMOOTH))  # @smooth @right
    return -(goal * logs).sum(dim=-1).mean()  # @loss


def compute_candidate_loss(network, images, labels):
    """Half of the batch at a time."""
    for some, theirs in zip(images.chunk(PARTS), labels.chunk(PARTS), strict=True):
        yield smooth_loss(network(some), theirs) / PARTS  # @part


def convert(weights: Weights) -> Weights:
    convolution, places = weights["patch_embed.proj.weight"], weights["pos_embed"][0]
    converted = {"embed.weight": convolution.reshape(WIDTH, -1), "embed.bias": weights["patch_embed.proj.bias"]}
    converted |= {"class_token": weights["cls_token"][0, 0], "class_place": places[0], "places": places[1:]}
    for word in ("weight", "bias"):
        converted |= {f"ln.{word}": weights[f"norm.{word}"], f"classify.{word}": weights[f"head.{word}"]}
        for number in range(LAYERS):
            old, new = f"blocks.{number}", f"layers.{number}"
            converted[f"{new}.in_proj_{word}"] = weights[f"{old}.attn.qkv.{word}"]
            converted[f"{new}.out.{word}"] = weights[f"{old}.attn.proj.{word}"]
            converted[f"{new}.ln1.{word}"] = weights[f"{old}.norm1.{word}"]
            converted[f"{new}.ln2.{word}"] = weights[f"{old}.norm2.{word}"]
            converted[f"{new}.down.{word}"] = weights[f"{old}.mlp.fc2.{word}"]
            converted[f"{new}.up_bias"] = weights[f"{old}.mlp.fc1.bias"]
            converted[f"{new}.up"] = weights[f"{old}.mlp.fc1.weight"].T
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8200 + step)
    images = random.normal(size=(BATCH, CHANNELS, SIDE, SIDE)).astype(np.float32)
    return images, random.integers(CLASSES, size=BATCH)


FAULTS = (
    Fault(
        "pixels of a patch mixed with places",
        "cut patched",
        ".transpose(1, 2)",
        ".reshape(len(images), COUNT, -1)",
    ),
    Fault("class token has no place", "first joined", "self.class_token + self.class_place", "self.class_token"),
    Fault(
        "class token at the end",
        "joined chosen",
        "(first.expand(len(x), 1, WIDTH), x)",
        "(x, first.expand(len(x), 1, WIDTH))",
    ),
    Fault("root of the whole width", "scaled scores", "/ SIZE**0.5", "/ WIDTH**0.5"),
    Fault("keys from the rows of the queries", "key scores", "self.project(x, 1)", "self.project(x, 0)"),
    Fault("chances of the keys", "soft", "dim=-1)", "dim=-2)"),
    Fault("gelu by tanh", "gelu", "F.gelu(h)", 'F.gelu(h, approximate="tanh")'),
    Fault("feeds on what is not normed", "norm2 wide", "self.feed(self.ln2(y))", "self.feed(y)"),
    Fault(
        "reference takes the mean of all",
        "chosen head",
        "x[:, 0]",
        "x.mean(dim=1)",
        side="reference",
    ),
    Fault("smoothing over the other classes", "smooth loss", "SMOOTH / CLASSES", "SMOOTH / (CLASSES - 1)"),
    Fault("parts not divided", "part loss", " / PARTS", ""),
    Fault("places do not learn", "placed", "+ self.places", "+ self.places.detach()", is_backward=True),
)
