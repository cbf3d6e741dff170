"""A little diffusion transformer (adaLN, qk-norm, v-prediction, min-SNR weights, self-conditioning), eager."""
import math
import os
import sys

import numpy as np
import torch
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

WIDTH, HEADS, DEPTH, PATCH, SIZE, CHANNELS, CLASSES, T = 24, 3, 2, 2, 8, 3, 5, 100


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.q_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, D = x.shape
        q = self.q_norm(self.q(x).reshape(B, N, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k(x).reshape(B, N, self.heads, self.head_dim)).transpose(1, 2)
        v = self.v(x).reshape(B, N, self.heads, self.head_dim).transpose(1, 2)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, N, D))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(approximate="tanh"), nn.Linear(2 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.ada(c).chunk(6, dim=1)
        x = x + gate_a.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_a, scale_a))
        x = x + gate_m.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_m, scale_m))
        return x


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patchify = nn.Conv2d(2 * CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.pos = nn.Parameter(torch.zeros(1, (SIZE // PATCH) ** 2, WIDTH))
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.label = nn.Embedding(CLASSES + 1, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, HEADS) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))
        self.proj = nn.Linear(WIDTH, PATCH * PATCH * CHANNELS)

    def forward(self, x, t, y, x_self):
        x = self.patchify(torch.cat([x, x_self], dim=1)).flatten(2).transpose(1, 2) + self.pos
        c = self.time(timestep_embedding(t, WIDTH)) + self.label(y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada(c).chunk(2, dim=1)
        x = self.proj(modulate(self.norm(x), shift, scale))
        n = SIZE // PATCH
        x = x.reshape(-1, n, n, PATCH, PATCH, CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(-1, CHANNELS, SIZE, SIZE)


def cosine_alpha_bar(t):
    return torch.cos((t.float() / T + 0.008) / 1.008 * math.pi / 2) ** 2


def init_weights(model, seed=3):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            v = torch.from_numpy(rng.normal(size=tuple(p.shape)).astype("float32"))
            p.copy_(v / math.sqrt(max(p[0].numel(), 1)) * 0.8 if p.ndim > 1 else 0.1 * v + ("_norm" in name))


def draw(step, batch=4):
    rng = np.random.default_rng(1000 + step)
    image = rng.normal(size=(batch, CHANNELS, SIZE, SIZE)).astype("float32")
    noise = rng.normal(size=image.shape).astype("float32")
    t = rng.integers(5, T - 5, batch)
    y = rng.integers(0, CLASSES, batch)
    y[rng.random(batch) < 0.3] = CLASSES  # classifier-free guidance: label dropped
    return [torch.from_numpy(a) for a in (image, noise, t, y)]


def loss_fn(model, image, noise, t, y, gamma=5.0):
    ab = cosine_alpha_bar(t)[:, None, None, None]
    x_t = ab.sqrt() * image + (1 - ab).sqrt() * noise
    target = ab.sqrt() * noise - (1 - ab).sqrt() * image
    with torch.no_grad():
        v = model(x_t, t, y, torch.zeros_like(x_t))
        x0 = ab.sqrt() * x_t - (1 - ab).sqrt() * v
    pred = model(x_t, t, y, x0)
    snr = (ab / (1 - ab)).flatten()
    weight = snr.clamp(max=gamma) / (snr + 1)
    return (weight * (pred - target).square().mean(dim=(1, 2, 3))).mean()


def main():
    model = DiT()
    init_weights(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "dit.pt"))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        data = draw(step)
        debugger.start(model)
        loss = loss_fn(model, *data)
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters()) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
