"""A T5 of our own: packed projections (qkv, kv, wi), one bias table per stack, scaled_dot_product_attention.

Reads the parameters under the names of the checkpoint of transformers.
"""
import math
import os
import sys
import zlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tensorprobe


class Dims(NamedTuple):
    vocab: int = 44
    width: int = 16
    heads: int = 3
    head: int = 6
    hidden: int = 20
    depth: int = 2
    buckets: int = 8
    reach: int = 12


def bucket_table(length: int, two_sided: bool, n: int, reach: int) -> Tensor:
    """bucket of (query, key); see mesh_tensorflow/transformer/transformer_layers.py"""
    out = np.zeros((length, length), dtype=np.int64)
    side = n // 2 if two_sided else n
    exact = side // 2
    for q in range(length):
        for k in range(length):
            d = abs(k - q) if two_sided else max(q - k, 0)
            if d >= exact:
                d = min(exact + int(math.log(d / exact) / math.log(reach / exact) * (side - exact)), side - 1)
            out[q, k] = d + (side if two_sided and k > q else 0)
    return torch.from_numpy(out)


class RMS(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.gain.shape, self.gain, eps=1e-6)


class Attend(nn.Module):
    """queries from x, keys and values from `memory`; all three in one matrix when memory is x"""

    def __init__(self, d: Dims, cross: bool):
        super().__init__()
        inner = d.heads * d.head
        self.heads, self.cross = d.heads, cross
        self.norm = RMS(d.width)
        if cross:
            self.q = nn.Linear(d.width, inner, bias=False)
            self.kv = nn.Linear(d.width, 2 * inner, bias=False)
        else:
            self.qkv = nn.Linear(d.width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, d.width, bias=False)

    def split(self, t, parts):
        b, n, _ = t.shape
        return t.view(b, n, parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x, bias, memory=None):
        h = self.norm(x)
        if self.cross:
            (q,), (k, v) = self.split(self.q(h), 1), self.split(self.kv(memory), 2)
        else:
            q, k, v = self.split(self.qkv(h), 3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return x + self.out(y.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.norm = RMS(d.width)
        self.wi = nn.Linear(d.width, 2 * d.hidden, bias=False)
        self.wo = nn.Linear(d.hidden, d.width, bias=False)

    def forward(self, x):
        gate, up = self.wi(self.norm(x)).chunk(2, dim=-1)
        return x + self.wo(F.gelu(gate, approximate="tanh") * up)


class Stack(nn.Module):
    def __init__(self, d: Dims, decoder: bool):
        super().__init__()
        self.decoder, self.d = decoder, d
        self.distance = nn.Parameter(torch.empty(d.buckets, d.heads))
        self.attn = nn.ModuleList(Attend(d, cross=False) for _ in range(d.depth))
        self.cross = nn.ModuleList(Attend(d, cross=True) for _ in range(d.depth if decoder else 0))
        self.mlp = nn.ModuleList(GatedMLP(d) for _ in range(d.depth))
        self.final = RMS(d.width)

    def position_bias(self, n):
        buckets = bucket_table(n, not self.decoder, self.d.buckets, self.d.reach)
        onehot = F.one_hot(buckets, self.d.buckets).to(self.distance.dtype)
        return torch.einsum("qkr,rh->hqk", onehot, self.distance)[None]

    def forward(self, x, keys, memory=None, memory_keys=None):
        n = x.shape[1]
        visible = keys[:, None, None, :]
        if self.decoder:
            visible = visible & torch.ones(n, n, dtype=torch.bool).tril()
        bias = self.position_bias(n).masked_fill(~visible, float("-inf"))
        for i in range(self.d.depth):
            x = self.attn[i](x, bias)
            if self.decoder:
                x = self.cross[i](x, memory_keys[:, None, None, :], memory)
            x = self.mlp[i](x)
        return self.final(x)


class T5(nn.Module):
    def __init__(self, d: Dims = Dims()):
        super().__init__()
        self.table = nn.Embedding(d.vocab, d.width)
        self.encoder = Stack(d, decoder=False)
        self.decoder = Stack(d, decoder=True)
        self.logit_scale = d.width**-0.5

    def forward(self, source, keep, labels):
        memory = self.encoder(self.table(source), keep)
        start = labels.new_zeros(labels.shape[0], 1)
        prompt = torch.cat([start, labels[:, :-1].clamp(min=0)], dim=1)
        states = self.decoder(self.table(prompt), torch.ones_like(prompt, dtype=torch.bool), memory, keep)
        logp = F.log_softmax((states * self.logit_scale) @ self.table.weight.t(), dim=-1)
        scored = labels.ne(-100)
        nll = -logp.gather(-1, labels.where(scored, 0)[..., None])[..., 0]
        return (nll * scored).sum() / scored.sum()


def hf(name, *shape):
    x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return torch.from_numpy(1 + 0.1 * x)
    if name == "shared.weight" or "relative" in name:
        return torch.from_numpy(0.8 * x)
    return torch.from_numpy(x / shape[1] ** 0.5)


@torch.no_grad()
def convert(net: T5, d: Dims = Dims()):
    inner = d.heads * d.head
    net.table.weight.copy_(hf("shared.weight", d.vocab, d.width))
    for side, stack in (("encoder", net.encoder), ("decoder", net.decoder)):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        stack.distance.copy_(hf(first, d.buckets, d.heads))
        stack.final.gain.copy_(hf(f"{side}.final_layer_norm.weight", d.width))
        for i in range(d.depth):
            at = f"{side}.block.{i}.layer."
            self_, cross, mlp = at + "0.SelfAttention.", at + "1.EncDecAttention.", at + ("2." if stack.decoder else "1.")
            stack.attn[i].qkv.weight.copy_(torch.cat([hf(self_ + c + ".weight", inner, d.width) for c in "qkv"]))
            stack.attn[i].out.weight.copy_(hf(self_ + "o.weight", d.width, inner))
            stack.attn[i].norm.gain.copy_(hf(at + "0.layer_norm.weight", d.width))
            if stack.decoder:
                stack.cross[i].q.weight.copy_(hf(cross + "q.weight", inner, d.width))
                stack.cross[i].kv.weight.copy_(torch.cat([hf(cross + c + ".weight", inner, d.width) for c in "kv"]))
                stack.cross[i].out.weight.copy_(hf(cross + "o.weight", d.width, inner))
                stack.cross[i].norm.gain.copy_(hf(at + "1.layer_norm.weight", d.width))
            dense = mlp + "DenseReluDense."
            stack.mlp[i].wi.weight.copy_(torch.cat([hf(dense + f"wi_{j}.weight", d.hidden, d.width) for j in (0, 1)]))
            stack.mlp[i].wo.weight.copy_(hf(dense + "wo.weight", d.width, d.hidden))
            stack.mlp[i].norm.gain.copy_(hf(mlp + "layer_norm.weight", d.width))
    return net


def samples(step, n=4, source=13, target=9, vocab=44):
    rs = np.random.RandomState(100 + step)
    src, tgt = rs.randint(2, vocab, (n, source)), rs.randint(2, vocab, (n, target))
    keep = np.arange(source) < rs.randint(6, source + 1, n)[:, None]
    last = rs.randint(4, target + 1, n)[:, None] - 1
    col = np.arange(target)
    tgt = np.where(col < last, tgt, np.where(col == last, 1, -100))
    return torch.from_numpy(np.where(keep, src, 0)), torch.from_numpy(keep), torch.from_numpy(tgt)


def norm(tensors):
    return torch.stack([t.detach().double().square().sum() for t in tensors]).sum().sqrt()


if __name__ == "__main__":
    net = convert(T5())
    params = list(net.parameters())
    groups = [
        {"params": [p for p in params if p.dim() == 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), foreach=True)
    settings = dict(level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    with tensorprobe.capture(net, sys.argv[1], **settings) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            loss = net(*samples(step))
            loss.backward()
            grads = [p.grad for p in params if p.grad is not None]
            g = norm(grads)
            torch._foreach_mul_(grads, (1.0 / (g + 1e-6)).clamp(max=1.0).item())
            adam.step()
            adam.zero_grad(set_to_none=True)
            print(f"step {step} loss {loss.item():.8f} grad {g.item():.8f} weights {norm(params).item():.8f}")
            run.step()
