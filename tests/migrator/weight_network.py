"""Networks that both frameworks have, with other names for the same layers."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import torch
from mindspore import nn, ops
from torch.nn import functional

WIDTH, HIDDEN, WORDS, HEADS = 8, 12, 11, 2


class TorchNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TorchAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Any) -> Any:
        weights = torch.softmax(self.q_proj(x) @ self.k_proj(x).transpose(-2, -1), -1)
        return self.o_proj(weights @ self.v_proj(x))


class TorchMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = TorchAttention()
        self.mlp = TorchMlp()
        self.input_layernorm = TorchNorm()
        self.post_attention_layernorm = TorchNorm()

    def forward(self, x: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class TorchLlama(torch.nn.Module):
    """With the names of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.ModuleDict(
            {
                "embed_tokens": torch.nn.Embedding(WORDS, WIDTH),
                "layers": torch.nn.ModuleList(TorchBlock() for _ in range(2)),
                "norm": TorchNorm(),
            }
        )
        self.lm_head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.model["embed_tokens"](x)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


class CellNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(np.ones(WIDTH, np.float32))

    def construct(self, x: Any) -> Any:
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + 1e-6) * self.weight


class CellAttention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self, name, nn.Dense(WIDTH, WIDTH, has_bias=False))

    def construct(self, x: Any) -> Any:
        keys, queries = self.wk(x), self.wq(x)  # in another order than the other network
        weights = ops.softmax(queries @ keys.swapaxes(-2, -1), -1)
        return self.wo(weights @ self.wv(x))


class CellMlp(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Dense(WIDTH, HIDDEN, has_bias=False)
        self.w2 = nn.Dense(HIDDEN, WIDTH, has_bias=False)
        self.w3 = nn.Dense(WIDTH, HIDDEN, has_bias=False)

    def construct(self, x: Any) -> Any:
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class CellBlock(nn.Cell):
    def __init__(self, norms: tuple[str, str]) -> None:
        super().__init__()
        self.norms = norms
        for name in reversed(norms):  # the order of definition says nothing either
            setattr(self, name, CellNorm())
        self.attention = CellAttention()
        self.feed_forward = CellMlp()

    def construct(self, x: Any) -> Any:
        x = x + self.attention(getattr(self, self.norms[0])(x))
        return x + self.feed_forward(getattr(self, self.norms[1])(x))


class CellLlama(nn.Cell):
    """With the names of the first Llama, and those of the norms as given."""

    def __init__(self, norms: tuple[str, str] = ("attention_norm", "ffn_norm")) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.CellList([CellBlock(norms) for _ in range(2)])
        self.norm = CellNorm()
        self.output = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, x: Any) -> Any:
        x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class TorchUnet(torch.nn.Module):
    """Two levels; the convolutions of the way down and of the way up have equal shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.mid = _torch_pair(3, 4), _torch_pair(4, 4), _torch_pair(4, 4)
        self.up2, self.up1 = _torch_pair(8, 4), _torch_pair(8, 4)
        self.out = torch.nn.Conv2d(4, 2, 1)

    def forward(self, x: Any) -> Any:
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        low = self.mid(functional.max_pool2d(two, 2))
        low = self.up2(torch.cat([functional.interpolate(low, scale_factor=2), two], 1))
        return self.out(self.up1(torch.cat([functional.interpolate(low, scale_factor=2), one], 1)))


def _torch_pair(inputs: int, outputs: int) -> Any:
    layers = []
    for wide in (inputs, outputs):
        layers += [torch.nn.Conv2d(wide, outputs, 3, padding=1), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


class CellUnet(nn.Cell):
    """The same; `names`: of the two levels down, the middle and the two levels up."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name, inputs in sorted(zip(names, (3, 4, 4, 8, 8), strict=True)):
            setattr(self, name, CellPair(inputs, 4))
        self.out = nn.Conv2d(4, 2, 1, has_bias=True)

    def construct(self, x: Any) -> Any:
        down1, down2, mid, up2, up1 = (getattr(self, name) for name in self.names)
        one = down1(x)
        two = down2(ops.max_pool2d(one, 2))
        low = mid(ops.max_pool2d(two, 2))
        low = up2(ops.cat([_double(low), two], 1))
        return self.out(up1(ops.cat([_double(low), one], 1)))


def _double(x: Any) -> Any:
    return ops.repeat_interleave(ops.repeat_interleave(x, 2, 2), 2, 3)


class CellPair(nn.Cell):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        for number, wide in ((1, inputs), (2, outputs)):
            convolution = nn.Conv2d(wide, outputs, 3, pad_mode="pad", padding=1, has_bias=True)
            setattr(self, f"conv{number}", convolution)
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))

    def construct(self, x: Any) -> Any:
        return ops.relu(self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x))))))


class TorchFused(torch.nn.Module):
    """An attention with one matrix for query, key and value: nn.MultiheadAttention's, or a layer of another name."""

    def __init__(self, kind: str, is_in_blocks: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.is_in_blocks = is_in_blocks
        if kind == "in_proj":
            self.attn: Any = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        else:
            self.attn = torch.nn.ModuleDict(
                {kind: torch.nn.Linear(WIDTH, 3 * WIDTH), "out_proj": torch.nn.Linear(WIDTH, WIDTH)}
            )

    def forward(self, x: Any) -> Any:
        if self.kind == "in_proj":
            return self.attn(x, x, x, need_weights=False)[0]
        joined = self.attn[self.kind](x)
        if self.is_in_blocks:
            parts = [_torch_heads(part) for part in joined.chunk(3, -1)]
        else:
            parts = joined.view(*x.shape[:2], HEADS, 3, WIDTH // HEADS).permute(3, 0, 2, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(*parts)
        return self.attn["out_proj"](mixed.transpose(1, 2).flatten(2))


def _torch_heads(x: Any) -> Any:
    return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


class CellSplit(nn.Cell):
    """The same with three matrices."""

    def __init__(self, names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj")) -> None:
        super().__init__()
        self.names = names
        self.attn = nn.CellDict({name: nn.Dense(WIDTH, WIDTH) for name in sorted(names)})

    def construct(self, x: Any) -> Any:
        query, key, value, output = (self.attn[name] for name in self.names)
        queries, keys, values = (_cell_heads(layer(x)) for layer in (query, key, value))
        weights = ops.softmax(queries @ keys.swapaxes(-2, -1) / (WIDTH // HEADS) ** 0.5, -1)
        mixed = (weights @ values).swapaxes(1, 2)
        return output(mixed.reshape(*mixed.shape[:2], WIDTH))


def _cell_heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).swapaxes(1, 2)


def randomize(module: torch.nn.Module) -> torch.nn.Module:
    """Other numbers in every weight, those of norms and biases too: a network that has learnt something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in [*module.parameters(), *module.buffers()]:
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) * 0.8 + 0.1)
    return module.eval()
