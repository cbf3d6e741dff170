"""Greedy and sampled answers of a small decoder with grouped queries: the whole text is run again for every new word."""
import os, sys, zlib
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
import tensorprobe

VOCAB, DIM, HEADS, GROUPS, HEAD, INNER, LAYERS, BATCH, PROMPT, NEW, WINDOW = 31, 12, 4, 2, 4, 20, 2, 3, 5, 4, 6


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


def rotate(x, positions, base=10000.0):
    freq = base ** (-torch.arange(0, HEAD, 2) / HEAD)
    angle = positions[:, None, :, None] * freq
    cos, sin = angle.cos(), angle.sin()
    x1, x2 = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(DIM, GROUPS * HEAD, bias=False)
        self.v_proj = nn.Linear(DIM, GROUPS * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.q_norm, self.k_norm = RMSNorm(HEAD), RMSNorm(HEAD)

    def forward(self, x, positions, mask):
        b, n, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, n, HEADS, HEAD)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, n, GROUPS, HEAD)).transpose(1, 2)
        v = self.v_proj(x).view(b, n, GROUPS, HEAD).transpose(1, 2)
        q, k = rotate(q, positions), rotate(k, positions)
        k, v = k.repeat_interleave(HEADS // GROUPS, dim=1), v.repeat_interleave(HEADS // GROUPS, dim=1)
        scores = q @ k.transpose(2, 3) / HEAD**0.5
        scores = 20.0 * torch.tanh(scores / 20.0)
        scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = RMSNorm(DIM), RMSNorm(DIM)
        self.attention = Attention()
        self.gate_proj, self.up_proj = nn.Linear(DIM, INNER, bias=False), nn.Linear(DIM, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, DIM, bias=False)

    def forward(self, x, positions, mask):
        if self.window:
            n = x.size(1)
            mask = mask & ~torch.ones(n, n, dtype=torch.bool).tril(-self.window)
        x = x + self.attention(self.norm1(x), positions, mask)
        h = self.norm2(x)
        return x + self.down_proj(F.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(WINDOW if i % 2 == 0 else 0) for i in range(LAYERS))
        self.norm = RMSNorm(DIM)

    def forward(self, ids, alive):
        n = ids.size(1)
        positions = (alive.long().cumsum(1) - 1).clamp(min=0)
        mask = torch.ones(n, n, dtype=torch.bool).tril()[None] & alive[:, None, :]
        x = self.embed_tokens(ids) * DIM**0.5
        for block in self.blocks:
            x = block(x, positions, mask)
        return self.norm(x[:, -1]) @ self.embed_tokens.weight.T


def choose(logits, seen, penalty=2.5, temperature=0.7, top_k=6):
    score = torch.gather(logits, 1, seen)
    score = torch.where(score < 0, score * penalty, score / penalty)
    logits = logits.scatter(1, seen, score) / temperature
    least = logits.topk(top_k).values[:, -1:]
    probabilities = F.softmax(logits.masked_fill(logits < least, -float("inf")), dim=-1)
    return probabilities.argmax(-1), probabilities


def initial(name, shape):
    value = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy((0.2 * value if "norm" in name else value / np.sqrt(shape[-1])).astype(np.float32))


def make_prompt(step):
    rng = np.random.default_rng([2, step])
    ids = rng.integers(1, VOCAB, (BATCH, PROMPT))
    alive = np.arange(PROMPT)[None] >= np.array([0, 2, 1])[:, None]  # padded at the left
    return torch.from_numpy(ids * alive), torch.from_numpy(alive)


@torch.no_grad()
def main():
    model = Decoder().eval()
    for name, p in model.named_parameters():
        p.copy_(initial(name, tuple(p.shape)))
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 1))):
            ids, alive = make_prompt(step)
            kept = []
            for _ in range(NEW):
                word, probabilities = choose(model(ids, alive), ids)
                kept.append(probabilities)
                ids = torch.cat([ids, word[:, None]], dim=1)
                alive = F.pad(alive, (0, 1), value=True)
            answers = torch.stack(kept, 1)
            run.step()
            print(f"{step} {answers.double().pow(2).sum():.8f} {(answers.double().flatten() * torch.arange(answers.numel())).sum():.8f}", ids[:, PROMPT:].tolist())


if __name__ == "__main__":
    main()
