"""Packed training without padding: all documents of a batch in one row, block-diagonal mask, complex rotary embedding.

The layout of the weights is that of the original release of Llama (interleaved rotary pairs), so `load` permutes
the rows of wq and wk of a checkpoint of transformers.
"""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

VOCAB, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 48, 32, 40, 2, 4, 2
HEAD_DIM = DIM // HEADS
EPS, THETA = 1e-5, 500.0


def rotations(positions):
    freqs = THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angle = torch.outer(positions.float(), freqs)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x, spin):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * spin[:, None]).flatten(-2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_attn = nn.Parameter(torch.empty(DIM))
        self.wqkv = nn.Parameter(torch.empty(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM))
        self.wo = nn.Parameter(torch.empty(HEADS * HEAD_DIM, DIM))
        self.ln_mlp = nn.Parameter(torch.empty(DIM))
        self.w13 = nn.Parameter(torch.empty(DIM, 2 * HIDDEN))
        self.w2 = nn.Parameter(torch.empty(HIDDEN, DIM))

    def attention(self, x, spin, mask):
        total = x.shape[0]
        heads = (x @ self.wqkv).view(total, -1, HEAD_DIM)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = rotate(q, spin), rotate(k, spin)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return y[0].transpose(0, 1).reshape(total, -1) @ self.wo

    def feed(self, x):
        a, b = (x @ self.w13).chunk(2, dim=-1)
        return (a * torch.sigmoid(a) * b) @ self.w2

    def forward(self, x, spin, mask):
        x = x + self.attention(F.rms_norm(x, (DIM,), self.ln_attn, EPS), spin, mask)
        return x + self.feed(F.rms_norm(x, (DIM,), self.ln_mlp, EPS))


class PackedLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_out = nn.Parameter(torch.empty(DIM))
        self.unembed = nn.Parameter(torch.empty(DIM, VOCAB))

    def forward(self, row, starts):
        total = row.numel()
        lengths = torch.diff(starts, append=torch.tensor([total]))
        doc = torch.repeat_interleave(torch.arange(len(starts)), lengths)
        index = torch.arange(total)
        spin = rotations(index - starts[doc])
        same = doc[:, None] == doc[None, :]
        mask = same & (index[None, :] <= index[:, None])
        x = self.tokens(row)
        for block in self.blocks:
            x = block(x, spin, mask)
        return F.rms_norm(x, (DIM,), self.ln_out, EPS) @ self.unembed


def targets_of(row, starts):
    """the next token; none for the last token of a document"""
    nxt = row.roll(-1)
    nxt[starts - 1] = -1
    return nxt


def lm_loss(logits, target):
    keep = target >= 0
    picked = logits[keep].gather(1, target[keep, None]).squeeze(1)
    return (logits[keep].logsumexp(dim=1) - picked).sum() / keep.sum()


def load(net):
    def get(name, *shape, std=None):
        noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
        value = 1.0 + 0.1 * noise if len(shape) == 1 else noise * (std or shape[1] ** -0.5)
        return torch.from_numpy(value.astype(np.float32))

    def interleave(w, heads):
        return w.view(heads, 2, HEAD_DIM // 2, DIM).transpose(1, 2).reshape(-1, DIM)

    state = {
        "tokens.weight": get("model.embed_tokens.weight", VOCAB, DIM, std=0.3),
        "ln_out": get("model.norm.weight", DIM),
        "unembed": get("lm_head.weight", VOCAB, DIM).t(),
    }
    for i in range(LAYERS):
        a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        q = interleave(get(a + "q_proj.weight", HEADS * HEAD_DIM, DIM), HEADS)
        k = interleave(get(a + "k_proj.weight", KV_HEADS * HEAD_DIM, DIM), KV_HEADS)
        v = get(a + "v_proj.weight", KV_HEADS * HEAD_DIM, DIM)
        gate, up = get(m + "gate_proj.weight", HIDDEN, DIM), get(m + "up_proj.weight", HIDDEN, DIM)
        state[f"blocks.{i}.wqkv"] = torch.cat([q, k, v]).t()
        state[f"blocks.{i}.wo"] = get(a + "o_proj.weight", DIM, HEADS * HEAD_DIM).t()
        state[f"blocks.{i}.w13"] = torch.cat([gate, up]).t()
        state[f"blocks.{i}.w2"] = get(m + "down_proj.weight", DIM, HIDDEN).t()
        state[f"blocks.{i}.ln_attn"] = get(f"model.layers.{i}.input_layernorm.weight", DIM)
        state[f"blocks.{i}.ln_mlp"] = get(f"model.layers.{i}.post_attention_layernorm.weight", DIM)
    net.load_state_dict(state)


def stream(seed, per_step):
    rs = np.random.RandomState(seed)
    while True:
        docs = []
        for n in rs.randint(5, 13, per_step):
            docs.append(np.concatenate([[1], rs.randint(3, VOCAB, n - 2), [2]]))
        starts = np.cumsum([0] + [len(d) for d in docs[:-1]])
        yield torch.from_numpy(np.concatenate(docs)), torch.from_numpy(starts)


def rate(step, peak=1e-2, warmup=4):
    return peak * min(1.0, (step + 1) / warmup)


if __name__ == "__main__":
    net = PackedLlama()
    load(net)
    matrices = [p for p in net.parameters() if p.ndim == 2]
    gains = [p for p in net.parameters() if p.ndim == 1]
    adamw = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=gains, weight_decay=0)], betas=(0.9, 0.95))
    batches = stream(seed=7, per_step=4)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        row, starts = next(batches)
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        probe.start(net)
        logits = net(row, starts)
        loss = lm_loss(logits, targets_of(row, starts))
        loss.backward()
        adamw.step()
        probe.stop()
        with torch.no_grad():
            grad = torch.cat([p.grad.double().flatten() for p in net.parameters()]).norm()
            size = torch.cat([p.double().flatten() for p in net.parameters()]).norm()
        adamw.zero_grad()
        probe.step()
        print(f"step {step} loss {loss:.8f} grad {grad:.8f} weights {size:.8f}")
