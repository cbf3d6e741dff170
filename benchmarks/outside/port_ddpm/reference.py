"""Diffusion with v-prediction on small images: residual blocks with time embedding, attention, self-conditioning, EMA."""
import copy
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

TIMESTEPS, CH, TDIM, SIZE, BATCH = 50, 12, 16, 6, 3


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim, groups=3):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(tdim, 2 * cout)
        self.norm2 = nn.GroupNorm(groups, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(F.silu(h))
        return self.skip(x) + h


class AttentionBlock(nn.Module):
    def __init__(self, ch, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(3, ch)
        self.qkv = nn.Conv1d(ch, 3 * ch, 1)
        self.proj = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x).reshape(b, c, h * w))
        q, k, v = qkv.reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        scale = 1 / math.sqrt(math.sqrt(c // self.heads))
        weight = torch.einsum("bnct,bncs->bnts", q * scale, k * scale)
        weight = torch.softmax(weight, dim=-1)
        a = torch.einsum("bnts,bncs->bnct", weight, v).reshape(b, c, h * w)
        return x + self.proj(a).reshape(b, c, h, w)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TDIM, 2 * TDIM), nn.SiLU(), nn.Linear(2 * TDIM, TDIM))
        self.stem = nn.Conv2d(2, CH, 3, padding=1)
        self.down = ResBlock(CH, CH, TDIM)
        self.mid = ResBlock(CH, CH, TDIM)
        self.attn = AttentionBlock(CH)
        self.up = ResBlock(2 * CH, CH, TDIM)
        self.out_norm = nn.GroupNorm(3, CH)
        self.out = nn.Conv2d(CH, 1, 3, padding=1)

    def forward(self, x, t, x_self_cond):
        emb = self.time_mlp(timestep_embedding(t, TDIM))
        x = self.stem(torch.cat([x, x_self_cond], dim=1))
        d = self.down(x, emb)
        m = self.attn(self.mid(F.avg_pool2d(d, 2), emb))
        u = self.up(torch.cat([F.interpolate(m, scale_factor=2, mode="nearest"), d], dim=1), emb)
        return self.out(F.silu(self.out_norm(u)))


class GaussianDiffusion(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        steps = torch.linspace(0, TIMESTEPS, TIMESTEPS + 1, dtype=torch.float64) / TIMESTEPS
        bar = torch.cos((steps + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
        alphas_bar = torch.cumprod(1 - betas, 0)
        self.register_buffer("sqrt_ab", alphas_bar.sqrt().float())
        self.register_buffer("sqrt_1mab", (1 - alphas_bar).sqrt().float())
        snr = alphas_bar / (1 - alphas_bar)
        self.register_buffer("loss_weight", (snr.clamp(max=5.0) / (snr + 1)).float())

    def coefficients(self, t):
        return self.sqrt_ab[t][:, None, None, None], self.sqrt_1mab[t][:, None, None, None]

    def forward(self, x0, t, noise):
        a, s = self.coefficients(t)
        xt = a * x0 + s * noise
        with torch.no_grad():  # estimate for the self-conditioning
            x_self = a * xt - s * self.model(xt, t, torch.zeros_like(xt))
            x_self = x_self.clamp(-1, 1)
        v = self.model(xt, t, x_self)
        target = a * noise - s * x0
        loss = F.mse_loss(v, target, reduction="none").flatten(1).mean(1)
        return (loss * self.loss_weight[t]).mean()


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), model.parameters()):
                s.lerp_(p, 1 - self.decay)


def batch(step):
    rng = np.random.RandomState(60 + step)
    x0 = np.tanh(rng.standard_normal((BATCH, 1, SIZE, SIZE))).astype(np.float32)
    return x0, rng.randint(2, TIMESTEPS, BATCH), rng.standard_normal(x0.shape).astype(np.float32)


def norm(tensors):
    return math.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


def main():
    torch.manual_seed(77)
    diffusion = GaussianDiffusion(Denoiser())
    np.savez(os.path.join(os.environ["WEIGHTS"], "ddpm.npz"), **{k: v.numpy() for k, v in diffusion.model.state_dict().items()})
    ema = EMA(diffusion.model, 0.9)
    opt = torch.optim.AdamW(diffusion.parameters(), lr=2e-3, weight_decay=0.01)
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        x0, t, noise = (torch.from_numpy(a) for a in batch(step))
        dbg.start(diffusion)
        loss = diffusion(x0, t, noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(diffusion.model)
        with torch.no_grad():  # one denoising step with the averaged weights, to look at
            sample = ema.shadow(noise, t, torch.zeros_like(noise))
        dbg.stop()
        dbg.step()
        print(f"step {step} loss {loss.item():.8f} gnorm {norm(p.grad for p in diffusion.parameters()):.8f} "
              f"wnorm {norm(diffusion.parameters()):.8f} ema {norm(ema.shadow.parameters()):.8f} sample {norm([sample]):.7f}")


if __name__ == "__main__":
    main()
