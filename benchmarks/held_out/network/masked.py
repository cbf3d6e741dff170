"""A vision transformer that paints hidden patches: shuffled by index in the reference, by ranks in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
from mindspore import Parameter, Tensor, nn, ops
from torch.nn import functional as F

from held_out.fault import Fault
from held_out.weight import Weights

SIZE, PATCH, SIDE, WIDTH, HEADS, DEPTH, PAINT, PAINT_HEADS, KEPT, BATCH = 12, 4, 3, 16, 4, 2, 12, 3, 4, 3
COUNT, PIXELS = SIDE * SIDE, 3 * PATCH * PATCH


def make_places(width: int) -> np.ndarray:
    """Sines and cosines of the column, then of the row; the class token has none."""
    speeds = 1.0 / 10000 ** (np.arange(width // 4) / (width / 4))
    rows, columns = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    parts = [wave(np.outer(grid.ravel(), speeds)) for grid in (columns, rows) for wave in (np.sin, np.cos)]
    return np.concatenate([np.zeros((1, width)), np.concatenate(parts, axis=1)]).astype(np.float32)


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width, eps=1e-6)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)
        self.norm2 = torch.nn.LayerNorm(width, eps=1e-6)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):
        batch, count, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, count, 3, self.heads, width // self.heads)  # @norm1 @qkv
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # @qkv
        h = F.scaled_dot_product_attention(query, key, value)  # @scores @soft @mixed
        x = x + self.proj(h.transpose(1, 2).reshape(batch, count, width))  # @proj @added1
        return x + self.mlp(self.norm2(x))  # @norm2 @wide @gelu @narrow @added2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = torch.nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)
        self.cls_token = torch.nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.register_buffer("pos_embed", torch.from_numpy(make_places(WIDTH))[None], persistent=False)
        self.blocks = torch.nn.ModuleList([Block(WIDTH, HEADS) for _ in range(DEPTH)])
        self.norm = torch.nn.LayerNorm(WIDTH, eps=1e-6)
        self.decoder_embed = torch.nn.Linear(WIDTH, PAINT)
        self.mask_token = torch.nn.Parameter(torch.zeros(1, 1, PAINT))
        self.register_buffer("decoder_pos_embed", torch.from_numpy(make_places(PAINT))[None], persistent=False)
        self.decoder_block = Block(PAINT, PAINT_HEADS)
        self.decoder_norm = torch.nn.LayerNorm(PAINT, eps=1e-6)
        self.decoder_pred = torch.nn.Linear(PAINT, PIXELS)

    def encode(self, images, noise):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)  # @embedded
        x = x + self.pos_embed[:, 1:]  # @placed
        shuffle = torch.argsort(noise, dim=1)  # @order
        restore = torch.argsort(shuffle, dim=1)  # @order
        kept = shuffle[:, :KEPT, None].expand(-1, -1, WIDTH)
        x = torch.gather(x, 1, kept)  # @picked
        mask = torch.ones(noise.shape)
        mask[:, :KEPT] = 0
        mask = torch.gather(mask, 1, restore)  # @mask
        begin = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)  # @begin
        x = torch.cat((begin, x), dim=1)  # @begin @begun
        for block in self.blocks:
            x = block(x)
        return self.norm(x), mask, restore  # @norm

    def decode(self, x, restore):
        x = self.decoder_embed(x)  # @decoder_embed
        hidden = self.mask_token.expand(len(x), COUNT - KEPT, -1)  # @hidden
        patches = torch.cat((x[:, 1:], hidden), dim=1)  # @hidden
        patches = torch.gather(patches, 1, restore.unsqueeze(-1).expand(-1, -1, PAINT))  # @restored
        x = torch.cat((x[:, :1], patches), dim=1) + self.decoder_pos_embed  # @decoder_placed
        x = self.decoder_pred(self.decoder_norm(self.decoder_block(x)))  # @decoder_norm @painted
        return x[:, 1:]  # @cut


def compute_reference_loss(network, images, noise):
    x, mask, restore = network.encode(images, noise)
    found = network.decode(x, restore)
    target = images.reshape(-1, 3, SIDE, PATCH, SIDE, PATCH)
    target = torch.einsum("nchpwq->nhwpqc", target).reshape(-1, COUNT, PIXELS)  # @patches
    mean, variance = target.mean(dim=-1, keepdim=True), target.var(dim=-1, keepdim=True)  # @mean @variance
    target = (target - mean) / (variance + 1e-6) ** 0.5  # @centred @target
    loss = (found - target).square().mean(dim=-1)  # @error
    return (loss * mask).sum() / mask.sum()  # @loss


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.proj = nn.Dense(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).swapaxes(1, 2)

    def construct(self, x: Tensor) -> Tensor:
        query, key = self.split(self.query(x)), self.split(self.key(x))  # @qkv
        value = self.split(self.value(x))  # @qkv
        scores = ops.matmul(query, key.swapaxes(2, 3)) * self.size**-0.5  # @scores
        chances = ops.softmax(scores, -1)  # @soft
        h = ops.matmul(chances, value).swapaxes(1, 2)  # @mixed
        return self.proj(h.reshape(x.shape))  # @proj


class Layer(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)  # @norm1_made
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-6)
        self.attention = Attention(width, heads)
        self.wide, self.narrow = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.gelu = nn.GELU(approximate=False)  # @gelu_made

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))  # @norm1 @added1
        h = self.gelu(self.wide(self.norm2(x)))  # @norm2 @wide @gelu
        return x + self.narrow(h)  # @narrow @added2


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Dense(PIXELS, WIDTH)
        self.begin = Parameter(ops.zeros((1, 1, WIDTH)), name="begin")
        self.layers = nn.CellList([Layer(WIDTH, HEADS) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.enter = nn.Dense(WIDTH, PAINT)
        self.hidden = Parameter(ops.zeros((PAINT,)), name="hidden")
        self.painter = Layer(PAINT, PAINT_HEADS)
        self.last_norm, self.paint = nn.LayerNorm((PAINT,), epsilon=1e-6), nn.Dense(PAINT, PIXELS)
        self.places = Tensor(make_places(WIDTH)[1:])
        self.paint_places = Tensor(make_places(PAINT))

    def construct(self, patches: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(patches)  # @embedded
        x = x + self.places  # @placed
        rank = (noise.expand_dims(1) < noise.expand_dims(2)).astype(ms.int32).sum(-1)  # @order
        chosen = ops.one_hot(rank, COUNT).astype(ms.float32)[:, :, :KEPT]  # @order
        x = ops.bmm(chosen.swapaxes(1, 2), x)  # @picked
        x = ops.cat((self.begin.broadcast_to((len(x), 1, WIDTH)), x), 1)  # @begin @begun
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)  # @norm
        x = self.enter(x)  # @decoder_embed
        is_hidden = (rank >= KEPT).astype(ms.float32)  # @mask
        patches = ops.bmm(chosen, x[:, 1:])  # @restored
        patches = patches + is_hidden.expand_dims(-1) * self.hidden  # @hidden
        x = ops.cat((x[:, :1], patches), 1) + self.paint_places  # @decoder_placed
        x = self.last_norm(self.painter(x))  # @decoder_norm
        return self.paint(x)[:, 1:], is_hidden  # @painted @cut


def cut_patches(images: Tensor) -> Tensor:
    parts = images.reshape(-1, 3, SIDE, PATCH, SIDE, PATCH)
    return parts.permute(0, 2, 4, 3, 5, 1).reshape(-1, COUNT, PIXELS)  # @patches


def compute_candidate_loss(network, images, noise):
    patches = cut_patches(images)
    found, is_hidden = network(patches, noise)
    centred = patches - patches.mean(-1, keep_dims=True)  # @mean @centred
    variance = ops.square(centred).sum(-1, keepdims=True) / (PIXELS - 1)  # @variance
    target = centred * ops.rsqrt(variance + 1e-6)  # @target
    loss = ops.square(found - target).mean(-1)  # @error
    return (loss * is_hidden).sum() / (BATCH * (COUNT - KEPT))  # @loss


def convert(weights: Weights) -> Weights:
    kernel = weights["patch_embed.weight"]
    converted = {"embed.weight": kernel.transpose(0, 2, 3, 1).reshape(WIDTH, PIXELS)}  # @load_embed
    converted |= {"embed.bias": weights["patch_embed.bias"], "begin": weights["cls_token"]}
    converted["hidden"] = weights["mask_token"].reshape(-1)
    plain = {"norm": "norm", "enter": "decoder_embed", "last_norm": "decoder_norm", "paint": "decoder_pred"}
    paths = {f"layers.{number}": f"blocks.{number}" for number in range(DEPTH)} | {"painter": "decoder_block"}
    for new, old in paths.items():
        plain |= {f"{new}.{name}": f"{old}.{name}" for name in ("norm1", "norm2")}
        plain |= {f"{new}.wide": f"{old}.mlp.0", f"{new}.narrow": f"{old}.mlp.2"}
        plain[f"{new}.attention.proj"] = f"{old}.proj"
        for word in ("weight", "bias"):
            parts = np.split(weights[f"{old}.qkv.{word}"], 3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):  # @load_qkv
                converted[f"{new}.attention.{name}.{word}"] = part
    for new, old in plain.items():
        weight, bias = ("gamma", "beta") if "norm" in new else ("weight", "bias")
        converted |= {f"{new}.{weight}": weights[f"{old}.weight"], f"{new}.{bias}": weights[f"{old}.bias"]}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(7600 + step)
    images = random.normal(size=(BATCH, 3, SIZE, SIZE)) + 0.5 * random.normal(size=(BATCH, 3, 1, 1))
    return images.astype(np.float32), random.random(size=(BATCH, COUNT)).astype(np.float32)


FAULTS = (
    Fault(
        "the noisiest patches are kept", "order picked", "noise.expand_dims(1) < noise", "noise.expand_dims(1) > noise"
    ),
    Fault(
        "places added after the choice",
        "placed picked begun begin",
        "x = x + self.places",
        "x = x",
        second=("picked", "(chosen.swapaxes(1, 2), x)", "(chosen.swapaxes(1, 2), x) + self.places[:KEPT]"),
    ),
    Fault(
        "kernel laid out with channels first",
        "embedded",
        "kernel.transpose(0, 2, 3, 1)",
        "kernel",
        edit="load_embed",
        parameter="patch_embed.weight",
    ),
    Fault("patches in columns", "patches embedded", ".permute(0, 2, 4, 3, 5, 1)", ".permute(0, 4, 2, 3, 5, 1)"),
    Fault("gelu by the tangent", "gelu", "approximate=False", "approximate=True", edit="gelu_made"),
    Fault(
        "epsilon of the first norm",
        "norm1",
        "epsilon=1e-6",
        "epsilon=1e-3",
        edit="norm1_made",
    ),
    Fault("softmax over the queries", "soft", "ops.softmax(scores, -1)", "ops.softmax(scores, -2)"),
    Fault("no norm after the layers", "norm decoder_embed", "x = self.norm(x)", "x = x"),
    Fault(
        "hidden token learns nothing",
        "hidden restored",
        "* self.hidden",
        "* ops.stop_gradient(self.hidden)",
        is_backward=True,
    ),
    Fault(
        "first patches painted by the class token", "cut painted error", "self.paint(x)[:, 1:]", "self.paint(x)[:, :-1]"
    ),
    Fault("variance is biased", "variance target", "/ (PIXELS - 1)", "/ PIXELS"),
    Fault("error of all patches", "loss", "(loss * is_hidden).sum() / (BATCH * (COUNT - KEPT))", "loss.mean()"),
    Fault(
        "reference keeps its targets as they are",
        "target centred mean variance",
        "(target - mean) / (variance + 1e-6) ** 0.5",
        "target",
        edit="target",
        side="reference",
    ),
    Fault(
        "values exchanged with keys in the load",
        "qkv scores",
        '("query", "key", "value")',
        '("query", "value", "key")',
        edit="load_qkv",
        parameter="qkv",
    ),
)
