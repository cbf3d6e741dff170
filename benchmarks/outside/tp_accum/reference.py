"""A plain decoder on one device. Two micro-batches per step, loss per token over the whole
step, static loss scale, clipping by the global norm."""
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tensorprobe.pytorch import PrecisionDebugger

VOCAB, WIDTH, HEADS, DEPTH, LENGTH = 36, 16, 4, 2, 10
LOSS_SCALE = 256.0
MICRO_BATCHES = 2


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        t = x.shape[1]
        scores = scores.masked_fill(self.future[:t, :t], torch.finfo(scores.dtype).min)
        context = scores.softmax(-1) @ v
        return self.dense(context.transpose(1, 2).reshape(x.shape))


class TransformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm = nn.LayerNorm(WIDTH)
        self.attention = SelfAttention()
        self.post_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([TransformerLayer() for _ in range(DEPTH)])
        self.final_norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)
        self.output.weight = self.word.weight  # tied

    def forward(self, tokens):
        x = self.word(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.output(self.final_norm(x))


def draw_weights(model):
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32))
            if "norm" in name or name.endswith("bias"):
                p.copy_(0.1 * z + ("norm" in name and name.endswith("weight")))
            else:
                p.copy_((0.5 if p.shape[0] in (VOCAB, LENGTH) else p.shape[1] ** -0.5) * z)


def micro_batches(step):
    """tokens, targets and which of the targets count"""
    rng = np.random.default_rng(40 + step)
    for _ in range(MICRO_BATCHES):
        tokens = rng.integers(1, VOCAB, (3, LENGTH + 1))
        lengths = rng.integers(2, LENGTH + 1, 3)
        mask = np.arange(LENGTH)[None] < lengths[:, None]
        tokens[:, 1:][~mask] = 0
        yield torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:]), torch.from_numpy(mask)


def train_step(model, optimizer, batches):
    tokens_in_step = sum(mask.sum() for _, _, mask in batches)
    total = 0.0
    for tokens, targets, mask in batches:
        logits = model(tokens)
        loss = F.cross_entropy(logits[mask], targets[mask], reduction="sum") / tokens_in_step
        (loss * LOSS_SCALE).backward()
        total = total + loss.detach()
    for p in model.parameters():
        p.grad.div_(LOSS_SCALE)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return total, norm


def main():
    model = GPT()
    draw_weights(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "dense.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        batches = list(micro_batches(step))
        debugger.start(model)
        loss, norm = train_step(model, optimizer, batches)
        debugger.stop()
        size = sum(p.detach().double().pow(2).sum() for p in model.parameters()).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {norm.item():.8f} params {size:.8f}")
        debugger.step()


if __name__ == "__main__":
    main()
