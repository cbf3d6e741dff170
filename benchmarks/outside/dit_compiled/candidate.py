"""DiT training, optimised: fused qkv, SDPA, and every block under torch.compile."""
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

BACKEND = os.environ.get("COMPILE_BACKEND", "aot_eager")


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.gain_q = nn.Parameter(torch.ones(width // heads))
        self.gain_k = nn.Parameter(torch.ones(width // heads))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        q = F.rms_norm(q, q.shape[-1:], self.gain_q, eps=1e-6)
        k = F.rms_norm(k, k.shape[-1:], self.gain_k, eps=1e-6)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))


class DiTBlock(nn.Module):
    def __init__(self, width, heads, mlp_ratio=2):
        super().__init__()
        self.width = width
        self.attn = SelfAttention(width, heads)
        self.fc1 = nn.Linear(width, mlp_ratio * width)
        self.fc2 = nn.Linear(mlp_ratio * width, width)
        self.cond = nn.Linear(width, 6 * width)

    def ln(self, x, shift, scale):
        h = F.layer_norm(x, (self.width,), eps=1e-6)
        return torch.addcmul(shift, h, 1 + scale)

    def forward(self, x, c):
        s1, m1, g1, s2, m2, g2 = self.cond(F.silu(c))[:, None].chunk(6, dim=-1)
        x = torch.addcmul(x, g1, self.attn(self.ln(x, s1, m1)))
        h = F.gelu(self.fc1(self.ln(x, s2, m2)), approximate="tanh")
        return torch.addcmul(x, g2, self.fc2(h))


class Denoiser(nn.Module):
    def __init__(self, channels=3, size=8, patch=2, width=24, heads=3, depth=2, classes=5):
        super().__init__()
        self.channels, self.size, self.patch, self.width = channels, size, patch, width
        self.embed = nn.Linear(2 * channels * patch * patch, width)
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.t1, self.t2 = nn.Linear(width, width), nn.Linear(width, width)
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList([DiTBlock(width, heads) for _ in range(depth)])
        self.last_cond = nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, patch * patch * channels)

    def forward(self, x, t, y, x_self):
        p, n = self.patch, self.size // self.patch
        patches = F.unfold(torch.cat([x, x_self], 1), p, stride=p).transpose(1, 2)
        h = self.embed(patches) + self.pos
        half = self.width // 2
        freqs = 10000 ** (-torch.arange(half) / half)
        angle = t[:, None] * freqs
        emb = torch.cat([angle.cos(), angle.sin()], -1)
        c = self.t2(F.silu(self.t1(emb))) + self.label(y)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.last_cond(F.silu(c))[:, None].chunk(2, -1)
        h = self.last(F.layer_norm(h, (self.width,), eps=1e-6) * (1 + scale) + shift)
        h = h.view(-1, n, n, p, p, self.channels)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(-1, self.channels, self.size, self.size)


def from_reference(net, sd):
    out = {"embed.weight": sd["patchify.weight"].flatten(1), "embed.bias": sd["patchify.bias"], "pos": sd["pos"], "label.weight": sd["label.weight"]}
    for ours, theirs in {"t1": "time.0", "t2": "time.2", "last_cond": "ada.1", "last": "proj"}.items():
        out[ours + ".weight"], out[ours + ".bias"] = sd[theirs + ".weight"], sd[theirs + ".bias"]
    for i in range(len(net.blocks)):
        b = f"blocks.{i}."
        for kind in ("weight", "bias"):
            out[f"{b}attn.qkv.{kind}"] = torch.cat([sd[f"{b}attn.{n}.{kind}"] for n in "qkv"])
            out[f"{b}attn.out.{kind}"] = sd[f"{b}attn.out.{kind}"]
            out[f"{b}fc1.{kind}"], out[f"{b}fc2.{kind}"] = sd[f"{b}mlp.0.{kind}"], sd[f"{b}mlp.2.{kind}"]
            out[f"{b}cond.{kind}"] = sd[f"{b}ada.1.{kind}"]
        out[b + "attn.gain_q"], out[b + "attn.gain_k"] = sd[b + "attn.q_norm.weight"], sd[b + "attn.k_norm.weight"]
    net.load_state_dict(out)


def batches(steps, batch=4, channels=3, size=8, classes=5, T=100):
    for step in range(steps):
        rng = np.random.default_rng(1000 + step)
        x0 = rng.normal(size=(batch, channels, size, size)).astype("float32")
        eps = rng.normal(size=x0.shape).astype("float32")
        t = rng.integers(5, T - 5, batch)
        y = rng.integers(0, classes, batch)
        y = np.where(rng.random(batch) < 0.3, classes, y)
        yield tuple(torch.from_numpy(a) for a in (x0, eps, t, y))


def diffusion_loss(net, x0, eps, t, y, T=100, gamma=5.0):
    abar = torch.cos((t / T + 0.008) / 1.008 * math.pi / 2).pow(2).view(-1, 1, 1, 1)
    a, s = abar.sqrt(), (1 - abar).sqrt()
    x_t = a * x0 + s * eps
    v_first = net(x_t, t, y, torch.zeros_like(x_t))
    guess = (a * x_t - s * v_first).detach()
    v = net(x_t, t, y, guess)
    snr = (abar / (1 - abar)).view(-1)
    weight = torch.minimum(snr, torch.tensor(gamma)) / (snr + 1)
    per_image = F.mse_loss(v, a * eps - s * x0, reduction="none").flatten(1).mean(1)
    return torch.mean(per_image * weight)


if __name__ == "__main__":
    net = Denoiser()
    from_reference(net, torch.load(os.path.join(os.environ["WEIGHTS"], "dit.pt")))
    net.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    for block in net.blocks:
        block.compile(backend=BACKEND)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step, data in enumerate(batches(int(os.environ.get("STEPS", "2")))):
        debugger.start(net)
        loss = diffusion_loss(net, *data)
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in net.parameters()) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {sum(p.detach().double().abs().sum() for p in net.parameters()):.8f}")
        optimizer.zero_grad()
        debugger.step()
