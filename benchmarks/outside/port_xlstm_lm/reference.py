"""xLSTM language model: one mLSTM block (parallel form) and one sLSTM block (recurrent), tied embeddings, AdamW."""
import math
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

VOCAB, DIM, HEADS, SEQ, BATCH, PAD = 29, 16, 2, 4, 4, 0
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


class MultiHeadNorm(nn.Module):
    """Layer norm of each head; the weight is stored as its distance from one."""

    def __init__(self, dim, heads, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.heads, self.eps = heads, eps

    def forward(self, x):  # (batch, heads, time, head dim)
        b, h, t, d = x.shape
        y = x.transpose(1, 2).reshape(b * t, h * d)
        y = F.group_norm(y, self.heads, weight=1.0 + self.weight, eps=self.eps)
        return y.view(b, t, h * d)


class CausalConv(nn.Module):
    def __init__(self, dim, kernel=4):
        super().__init__()
        self.pad = kernel - 1
        self.conv = nn.Conv1d(dim, dim, kernel, padding=self.pad, groups=dim)

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))[..., : -self.pad]
        return F.silu(y.transpose(1, 2))


class MLSTMLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        inner = 2 * dim
        self.heads = heads
        self.up = nn.Linear(dim, 2 * inner, bias=False)
        self.conv = CausalConv(inner)
        self.q = nn.Linear(inner, inner, bias=False)
        self.k = nn.Linear(inner, inner, bias=False)
        self.v = nn.Linear(inner, inner, bias=False)
        self.igate = nn.Linear(3 * inner, heads)
        self.fgate = nn.Linear(3 * inner, heads)
        self.norm = MultiHeadNorm(inner, heads)
        self.skip = nn.Parameter(torch.ones(inner))
        self.down = nn.Linear(inner, dim, bias=False)

    def split(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        inner, z = self.up(x).chunk(2, dim=-1)
        act = self.conv(inner)
        q, k, v = self.q(act), self.k(act), self.v(inner)
        gates = torch.cat([q, k, v], dim=-1)
        igate = self.igate(gates).transpose(1, 2)
        logf = F.logsigmoid(self.fgate(gates)).transpose(1, 2)
        q, k, v = self.split(q), self.split(k), self.split(v)

        t = q.shape[2]
        cum = logf.cumsum(-1)
        decay = cum[..., :, None] - cum[..., None, :] + igate[..., None, :]
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
        decay = decay.masked_fill(~causal, float("-inf"))
        peak = decay.amax(dim=-1, keepdim=True)
        weights = torch.exp(decay - peak)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1]) * weights
        normalizer = torch.maximum(scores.sum(-1, keepdim=True).abs(), torch.exp(-peak))
        h = self.norm((scores / (normalizer + 1e-6)) @ v)
        h = h + self.skip * act
        return self.down(h * F.silu(z))


class SLSTMLayer(nn.Module):
    GATES = ("i", "f", "z", "o")

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.conv = CausalConv(dim)
        for gate in self.GATES:
            setattr(self, "w" + gate, nn.Linear(dim, dim))
        self.recurrent = nn.Parameter(torch.zeros(4, heads, self.hd, self.hd))
        self.norm = MultiHeadNorm(dim, heads)

    def forward(self, x):
        b, t, d = x.shape
        act = self.conv(x)
        wi, wf, wz, wo = self.wi(act), self.wf(act), self.wz(x), self.wo(x)
        h = c = n = x.new_zeros(b, d)
        m = x.new_zeros(b, d)
        outputs = []
        for step in range(t):
            hh = h.view(b, self.heads, self.hd)
            ri, rf, rz, ro = torch.einsum("bhd,ghde->gbhe", hh, self.recurrent).reshape(4, b, d)
            i = wi[:, step] + ri
            logf = m + F.logsigmoid(wf[:, step] + rf)
            m_new = i if step == 0 else torch.maximum(i, logf)
            ig, fg = torch.exp(i - m_new), torch.exp(logf - m_new)
            c = fg * c + ig * torch.tanh(wz[:, step] + rz)
            n = fg * n + ig
            h = torch.sigmoid(wo[:, step] + ro) * c / n
            m = m_new
            outputs.append(h)
        h = torch.stack(outputs, dim=1)
        return self.norm(h.view(b, t, self.heads, self.hd).transpose(1, 2))


class GatedMLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        hidden = int(dim * 4 / 3)
        self.up = nn.Linear(dim, 2 * hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.gelu(gate) * up)


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.layer = (MLSTMLayer if kind == "m" else SLSTMLayer)(DIM, HEADS)
        self.ffn_norm = nn.LayerNorm(DIM) if kind == "s" else None
        self.ffn = GatedMLP(DIM) if kind == "s" else None

    def forward(self, x):
        x = x + self.layer(self.norm(x))
        if self.ffn is not None:
            x = x + self.ffn(self.ffn_norm(x))
        return x


class XLSTM(nn.Module):
    def __init__(self, pattern="ms"):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(kind) for kind in pattern)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if name.endswith("fgate.bias"):
        return np.linspace(3, 5, shape[0]).astype(np.float32)
    if "norm" in name and name.endswith("weight"):
        return (float("layer.norm" not in name) + 0.1 * value).astype(np.float32)
    if name.endswith("skip"):
        return (1 + 0.1 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.2 * value).astype(np.float32)
    return (value / np.sqrt(shape[-1])).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(100 + step)
    ids = rng.randint(1, VOCAB, (BATCH, SEQ + 1))
    ids[:, 4] = ids[:, 1]
    length = rng.randint(3, SEQ + 2, (BATCH, 1))
    length[0] = SEQ + 1
    ids[np.arange(SEQ + 1)[None] >= length] = PAD
    return ids


def groups(net):
    decay = [p for p in net.parameters() if p.ndim >= 2]
    plain = [p for p in net.parameters() if p.ndim < 2]
    return [{"params": decay, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]


def main():
    net = XLSTM()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    opt = torch.optim.AdamW(groups(net), lr=LR, betas=BETAS, eps=EPS)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            ids = torch.from_numpy(make_batch(step))
            logits = net(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            gnorm = nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            opt.step()
            run.step()
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {float(gnorm):.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
