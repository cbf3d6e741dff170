"""Whisper for long audio: attention over the keys in chunks with an online softmax, nothing of size (time, time).

Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Rabe and Staats (2021).
"""
import math
import os
import sys
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tensorprobe.pytorch import PrecisionDebugger

WIDTH, HEADS, HIDDEN = 16, 2, 32
MELS, AUDIO, TEXT, VOCAB = 8, 14, 16, 40
PAD, SOT, EOT = 0, 1, 2
CHUNK = 6


def chunked_attention(q, k, v, causal):
    """q, k, v: (batch, heads, time, channels); q is scaled already"""
    rows = torch.arange(q.shape[2])[:, None]
    top = q.new_full((*q.shape[:3], 1), -math.inf)
    norm = torch.zeros_like(top)
    acc = torch.zeros_like(q)
    for lo in range(0, k.shape[2], CHUNK):
        hi = min(lo + CHUNK, k.shape[2])
        s = torch.einsum("bhqc,bhkc->bhqk", q, k[:, :, lo:hi])
        if causal:
            s = s.masked_fill(torch.arange(lo, hi) > rows, -math.inf)
        new_top = torch.maximum(top, s.detach().amax(-1, keepdim=True))
        shrink = torch.exp(top - new_top)
        p = torch.exp(s - new_top)
        norm = norm * shrink + p.sum(-1, keepdim=True)
        acc = acc * shrink + p @ v[:, :, lo:hi]
        top = new_top
    return acc / norm


class Attention(nn.Module):
    """whisper has a bias for queries and values, none for keys"""

    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal
        self.wq = nn.Linear(WIDTH, WIDTH)
        self.wkv = nn.Parameter(torch.empty(2, WIDTH, WIDTH))
        self.bv = nn.Parameter(torch.empty(WIDTH))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, source=None):
        source = x if source is None else source
        heads = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = torch.einsum("btc,pdc->pbtd", source, self.wkv)
        q = self.wq(x).mul((WIDTH // HEADS) ** -0.5)
        y = chunked_attention(heads(q), heads(k), heads(v + self.bv), self.causal)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 if decoder else 2))
        self.own = Attention(causal=decoder)
        self.other = Attention() if decoder else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x, audio=None):
        x = x + self.own(self.norms[0](x))
        if self.other is not None:
            x = x + self.other(self.norms[1](x), audio)
        return x + self.mlp(self.norms[-1](x))


def waves(length, channels):
    half = channels // 2
    speed = torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1)))
    angle = torch.arange(length)[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleList([nn.Conv1d(MELS, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, 2, padding=1)])
        self.register_buffer("clock", waves(AUDIO, WIDTH))
        self.listen = nn.ModuleList(Layer(decoder=False) for _ in range(1))
        self.heard = nn.LayerNorm(WIDTH)
        self.words = nn.Parameter(torch.empty(VOCAB, WIDTH))
        self.places = nn.Parameter(torch.empty(TEXT, WIDTH))
        self.write = nn.ModuleList(Layer(decoder=True) for _ in range(2))
        self.written = nn.LayerNorm(WIDTH)

    def encode(self, mel):
        x = mel
        for conv in self.stem:
            x = F.gelu(conv(x))
        x = x.mT + self.clock
        for layer in self.listen:
            x = layer(x)
        return self.heard(x)

    def forward(self, mel, tokens):
        audio = self.encode(mel)
        x = self.words[tokens] + self.places[: tokens.shape[1]]
        for layer in self.write:
            x = layer(x, audio)
        return F.linear(self.written(x), self.words)


def criterion(logits, labels, smooth=0.1):
    """(1 - s) nll + s times the mean over the vocabulary of -log p"""
    total = logits.logsumexp(-1)
    chosen = logits.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    nll, spread = total - chosen, total - logits.sum(-1) / logits.shape[-1]
    valid = (labels >= 0).to(logits.dtype)
    return (torch.lerp(nll, spread, smooth) * valid).sum() / valid.sum()


class DecoupledAdam:
    def __init__(self, params, lr=2e-3, betas=(0.9, 0.98), eps=1e-6, decay=0.1):
        self.params, self.lr, self.betas, self.eps, self.decay = list(params), lr, betas, eps, decay
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        self.t += 1
        for p, m, s in zip(self.params, self.mean, self.square):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            s.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            update = (m / (1 - b1**self.t)) / ((s / (1 - b2**self.t)).sqrt() + self.eps)
            p.mul_(1 - self.lr * self.decay).sub_(self.lr * update)
            p.grad = None


class Checkpoint:
    """draws what the checkpoint of transformers has under a name"""

    def __init__(self, prefix="model."):
        self.prefix = prefix

    def __call__(self, name, shape):
        x = np.random.RandomState(zlib.crc32((self.prefix + name).encode())).standard_normal(tuple(shape))
        if name.endswith("bias"):
            x = x * 0.1
        elif "layer_norm" in name:
            x = x * 0.1 + 1
        elif "embed" in name:
            x = x * 0.4
        else:
            x = x * 1.3 / math.sqrt(np.prod(shape[1:]))
        return torch.from_numpy(x.astype(np.float32))


@torch.no_grad()
def restore(net, read=Checkpoint()):
    def pair(module, name):
        module.weight.copy_(read(name + ".weight", module.weight.shape))
        module.bias.copy_(read(name + ".bias", module.bias.shape))

    def attention(a, name):
        pair(a.wq, name + ".q_proj")
        pair(a.proj, name + ".out_proj")
        for i, c in enumerate("kv"):
            a.wkv[i] = read(f"{name}.{c}_proj.weight", (WIDTH, WIDTH))
        a.bv.copy_(read(name + ".v_proj.bias", a.bv.shape))

    for i, conv in enumerate(net.stem):
        pair(conv, f"encoder.conv{i + 1}")
    net.words.copy_(read("decoder.embed_tokens.weight", net.words.shape))
    net.places.copy_(read("decoder.embed_positions.weight", net.places.shape))
    for side, layers, last in (("encoder", net.listen, net.heard), ("decoder", net.write, net.written)):
        pair(last, f"{side}.layer_norm")
        for i, layer in enumerate(layers):
            at = f"{side}.layers.{i}."
            attention(layer.own, at + "self_attn")
            pair(layer.norms[0], at + "self_attn_layer_norm")
            if layer.other is not None:
                attention(layer.other, at + "encoder_attn")
                pair(layer.norms[1], at + "encoder_attn_layer_norm")
            pair(layer.norms[-1], at + "final_layer_norm")
            pair(layer.mlp[0], at + "fc1")
            pair(layer.mlp[2], at + "fc2")


def load_batch(step, batch=3, frames=28, longest=11):
    rs = np.random.RandomState(900 + step)
    mel = torch.from_numpy(rs.standard_normal((batch, MELS, frames)).astype(np.float32))
    mel = 0.5 * (mel + mel.roll(1, dims=2))
    labels, inputs = [], []
    for _ in range(batch):
        n = rs.randint(5, longest + 1)
        words = [*rs.randint(3, VOCAB, n - 1), EOT]
        labels.append(words + [-100] * (longest - n))
        inputs.append(([SOT] + words + [PAD] * longest)[:longest])
    return mel, torch.tensor(np.array(inputs)), torch.tensor(np.array(labels))


if __name__ == "__main__":
    net = Whisper()
    restore(net)
    adam = DecoupledAdam(net.parameters())
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        mel, tokens, labels = load_batch(step)
        probe.start(net)
        loss = criterion(net(mel, tokens), labels)
        loss.backward()
        grad = math.sqrt(sum(float(p.grad.double().square().sum()) for p in net.parameters()))
        adam.step()
        probe.stop()
        size = math.sqrt(sum(float(p.detach().double().square().sum()) for p in net.parameters()))
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} weights {size:.8f}")
        probe.step()
