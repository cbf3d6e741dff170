"""The same answers with a cache: what was said is not run again; fused projections, queries by groups with einsum."""
import os, sys, zlib
from dataclasses import dataclass, field
import numpy as np
import torch
from torch import Tensor, nn
import torch.nn.functional as F
import tensorprobe

VOCAB, DIM, HEADS, GROUPS, HEAD, INNER, LAYERS, BATCH, PROMPT, NEW, WINDOW = 31, 12, 4, 2, 4, 20, 2, 3, 5, 4, 6


@dataclass
class Cache:
    keys: Tensor
    values: Tensor
    places: Tensor
    filled: int = 0

    @classmethod
    def empty(cls, size):
        return cls(torch.zeros(BATCH, size, GROUPS, HEAD), torch.zeros(BATCH, size, GROUPS, HEAD), torch.arange(size))

    def extend(self, k, v):
        end = self.filled + k.shape[1]
        self.keys[:, self.filled : end] = k
        self.values[:, self.filled : end] = v
        self.filled = end
        return self.keys[:, :end], self.values[:, :end]


def rms(x, gain):
    return F.rms_norm(x, x.shape[-1:], gain + 1, eps=1e-6)


class Rotary:
    """Complex turns, one for each position; the halves of a head are real and imaginary part."""

    def __init__(self, length, base=10000.0):
        angle = torch.outer(torch.arange(length).float(), base ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.turns = torch.polar(torch.ones_like(angle), angle)

    def __call__(self, x, positions):
        pair = torch.complex(*x.chunk(2, dim=-1)) * self.turns[positions].unsqueeze(2)
        return torch.cat([pair.real, pair.imag], dim=-1)


class Layer(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window
        self.wqkv = nn.Linear(DIM, (HEADS + 2 * GROUPS) * HEAD, bias=False)
        self.wo = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.w13, self.w2 = nn.Linear(DIM, 2 * INNER, bias=False), nn.Linear(INNER, DIM, bias=False)
        for name, size in (("norm1", DIM), ("norm2", DIM), ("q_gain", HEAD), ("k_gain", HEAD)):
            setattr(self, name, nn.Parameter(torch.zeros(size)))

    def attend(self, x, positions, rotary, alive, cache):
        b, n, _ = x.shape
        q, k, v = self.wqkv(x).view(b, n, -1, HEAD).split([HEADS, GROUPS, GROUPS], dim=2)
        start = cache.filled
        k, v = cache.extend(rotary(rms(k, self.k_gain), positions), v)
        q = rotary(rms(q, self.q_gain), positions).view(b, n, GROUPS, HEADS // GROUPS, HEAD)
        scores = torch.einsum("bqgrd,bkgd->bgrqk", q * HEAD**-0.5, k)
        scores = (scores / 20.0).tanh_().mul_(20.0)
        back = (start + torch.arange(n))[:, None] - cache.places[: cache.filled]
        hidden = (back < 0) | (back >= self.window) if self.window else back < 0
        hidden = hidden | ~alive[:, None]
        scores = scores + torch.zeros(b, n, cache.filled).masked_fill_(hidden, -1e30)[:, None, None]
        return self.wo(torch.einsum("bgrqk,bkgd->bqgrd", torch.softmax(scores, -1), v).flatten(2))

    def forward(self, x, *rest):
        x = x + self.attend(rms(x, self.norm1), *rest)
        gate, up = self.w13(rms(x, self.norm2)).chunk(2, dim=-1)
        return x + self.w2(F.gelu(gate, approximate="tanh") * up)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.zeros(VOCAB, DIM))
        self.layers = nn.ModuleList(Layer(WINDOW if i % 2 == 0 else 0) for i in range(LAYERS))
        self.last_norm = nn.Parameter(torch.zeros(DIM))
        self.rotary = Rotary(PROMPT + NEW)

    def forward(self, ids, positions, alive, caches):
        x = self.words[ids] * DIM**0.5
        for layer, cache in zip(self.layers, caches):
            x = layer(x, positions, self.rotary, alive, cache)
        return rms(x[:, -1], self.last_norm) @ self.words.mT

    @torch.inference_mode()
    def generate(self, ids, alive):
        caches = [Cache.empty(PROMPT + NEW) for _ in self.layers]
        positions = (alive.cumsum(1) - 1).clamp_min(0)
        seen = torch.zeros(BATCH, VOCAB, dtype=torch.bool).scatter_(1, ids, True)
        fed, answers, words = ids, [], []
        while len(words) < NEW:
            logits = self(fed, positions, alive, caches)
            probabilities = self.sharpen(logits, seen)
            fed = probabilities.argmax(-1, keepdim=True)
            seen = seen.scatter(1, fed, True)
            positions = positions[:, -1:] + 1
            alive = torch.cat([alive, torch.ones_like(alive[:, :1])], dim=1)
            answers.append(probabilities)
            words.append(fed)
        return torch.stack(answers, 1), torch.cat(words, 1)

    @staticmethod
    def sharpen(logits, seen, penalty=2.5, temperature=0.7, top_k=6):
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        best, index = torch.topk(logits, top_k)
        return torch.zeros_like(logits).scatter(1, index, torch.softmax(best / temperature, dim=-1))


def initial(name, *shape):
    value = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy((0.2 * value if "norm" in name else value / np.sqrt(shape[-1])).astype(np.float32))


@torch.no_grad()
def load(model):
    model.words.copy_(initial("embed_tokens.weight", VOCAB, DIM))
    model.last_norm.copy_(initial("norm.weight", DIM))
    for i, layer in enumerate(model.layers):
        a, m = f"blocks.{i}.attention.", f"blocks.{i}."
        layer.wqkv.weight.copy_(torch.cat([initial(a + f"{k}_proj.weight", n * HEAD, DIM) for k, n in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))]))
        layer.wo.weight.copy_(initial(a + "o_proj.weight", DIM, HEADS * HEAD))
        layer.w13.weight.copy_(torch.cat([initial(m + f"{k}_proj.weight", INNER, DIM) for k in ("gate", "up")]))
        layer.w2.weight.copy_(initial(m + "down_proj.weight", DIM, INNER))
        for new, old, size in (("norm1", m + "norm1", DIM), ("norm2", m + "norm2", DIM), ("q_gain", a + "q_norm", HEAD), ("k_gain", a + "k_norm", HEAD)):
            getattr(layer, new).copy_(initial(old + ".weight", size))


def make_prompt(step):
    rng = np.random.default_rng([2, step])
    ids = rng.integers(1, VOCAB, (BATCH, PROMPT))
    alive = np.arange(PROMPT)[None] >= np.array([0, 2, 1])[:, None]  # padded at the left
    return torch.from_numpy(ids * alive), torch.from_numpy(alive)


def main():
    model = Generator().eval()
    load(model)
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 1))):
            answers, words = model.generate(*make_prompt(step))
            run.step()
            print(f"{step} {answers.double().pow(2).sum():.8f} {(answers.double().flatten() * torch.arange(answers.numel())).sum():.8f}", words.tolist())


if __name__ == "__main__":
    main()
