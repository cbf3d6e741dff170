"""Sequence tagger with a weight-normed causal conv net: gradient accumulation over micro-batches of different length,
clipping, warmup + cosine, fused AdamW, and an exponential moving average that is evaluated after every update."""
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tensorprobe.pytorch import PrecisionDebugger

TAGS, VOCAB, DIM = 6, 20, 12
WARMUP, TOTAL = 4, 10


class Residual(nn.Module):
    def __init__(self, dim, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = weight_norm(nn.Conv1d(dim, dim, 3, dilation=dilation))
        self.mix = weight_norm(nn.Conv1d(dim, dim, 1))

    def forward(self, x):
        y = F.leaky_relu(self.conv(F.pad(x, (self.pad, 0))), 0.1)
        return x + self.mix(y)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(Residual(DIM, 1), Residual(DIM, 2))
        self.head = nn.Linear(DIM, TAGS)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids).transpose(1, 2)).transpose(1, 2))


def start_values(model):
    rng = np.random.default_rng(77)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            v = torch.from_numpy(rng.normal(size=tuple(p.shape))).float()
            p.copy_(0.5 * v if p.ndim > 1 else 0.1 * v)
            if name.endswith("original0"):
                p.copy_(1.0 + 0.2 * v)


def micro_batches(step):
    rng = np.random.default_rng([step, 9])
    for length in (9, 5, 7):
        ids = rng.integers(0, VOCAB, (3, length))
        tags = rng.integers(0, TAGS, (3, length))
        tags[rng.random((3, length)) < 0.2] = -1  # not annotated
        yield torch.from_numpy(ids), torch.from_numpy(tags)


def lr_factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


def main():
    model = Tagger()
    start_values(model)
    torch.save(dict(model.named_parameters()), os.path.join(os.environ["WEIGHTS"], "tagger.pt"))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    ema.update_parameters(model)  # the first one copies
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    held_ids, held_tags = next(micro_batches(10**6))
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        batches = list(micro_batches(step))
        total = sum(int((tags >= 0).sum()) for _, tags in batches)
        debugger.start(model)
        optimizer.zero_grad()
        running = 0.0
        for ids, tags in batches:
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), ignore_index=-1, reduction="sum") / total
            loss.backward()
            running = running + loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.7)
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
        with torch.no_grad():
            held = F.cross_entropy(ema(held_ids).flatten(0, 1), held_tags.flatten(), ignore_index=-1)
        debugger.stop()
        print(f"step {step} loss {running.item():.8f} norm {norm.item():.8f} held {held.item():.8f} "
              f"params {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f}")
        debugger.step()


if __name__ == "__main__":
    main()
