"""A small U-Net that finds the velocity between picture and noise; norms by hand and checkpoints after the refactor."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, CHANNELS, BASE, WIDTH, SINUS, TIME, GROUPS, BATCH, STEPS = 8, 3, 8, 12, 10, 16, 4, 4, 40
EPSILON, GAMMA, SCALE = 1e-3, 5.0, 64.0


def timestep_embedding(timesteps, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half).float() / half)  # @speeds
    args = timesteps[:, None].float() * freqs[None]  # @speeds @angles
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)  # @angles @waves


class ResnetBlock(nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, enter, eps=EPSILON), nn.GroupNorm(GROUPS, leave, eps=EPSILON)
        self.conv1, self.conv2 = nn.Conv2d(enter, leave, 3, padding=1), nn.Conv2d(leave, leave, 3, padding=1)
        self.time_emb_proj = nn.Linear(TIME, 2 * leave)
        self.conv_shortcut = nn.Conv2d(enter, leave, 1) if enter != leave else nn.Identity()

    def forward(self, input_tensor, temb):
        hidden_states = F.silu(self.norm1(input_tensor))  # @norm @silu1
        hidden_states = self.conv1(hidden_states)  # @conv1
        temb = self.time_emb_proj(F.silu(temb))[:, :, None, None]  # @timed
        scale, shift = torch.chunk(temb, 2, dim=1)  # @parted
        hidden_states = self.norm2(hidden_states)  # @norm
        hidden_states = hidden_states * (1 + scale) + shift  # @scaled
        hidden_states = self.conv2(F.silu(hidden_states))  # @silu2 @conv2
        return self.conv_shortcut(input_tensor) + hidden_states  # @short @added


class AttentionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, WIDTH, eps=EPSILON)
        self.qkv, self.proj_out = nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, -1)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=1)  # @norm @qkv
        scale = channels**-0.25
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)  # @scores
        weight = torch.softmax(weight.float(), dim=-1).type(weight.dtype)  # @soft
        h = self.proj_out(torch.einsum("bts,bcs->bct", weight, v))  # @mixed @out
        return (x + h).reshape(batch, channels, height, width)  # @attended


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time_embedding = nn.Sequential(nn.Linear(SINUS, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.conv_in = nn.Conv2d(CHANNELS, BASE, 3, padding=1)
        self.down, self.downsample = ResnetBlock(BASE, BASE), nn.Conv2d(BASE, BASE, 3, stride=2, padding=1)
        self.mid, self.attention = ResnetBlock(BASE, WIDTH), AttentionBlock()
        self.upsample = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.up = ResnetBlock(WIDTH + BASE, BASE)
        self.norm_out = nn.GroupNorm(GROUPS, BASE, eps=EPSILON)
        self.conv_out = nn.Conv2d(BASE, CHANNELS, 3, padding=1)

    def forward(self, sample, timesteps):
        temb = timestep_embedding(timesteps, SINUS).to(sample.dtype)
        temb = self.time_embedding(temb)  # @embedded
        sample = self.conv_in(sample)  # @enter
        skip = self.down(sample, temb)
        sample = self.downsample(skip)  # @down
        sample = self.attention(self.mid(sample, temb))
        sample = F.interpolate(sample, scale_factor=2.0, mode="nearest")  # @above
        sample = self.upsample(sample)  # @up
        sample = self.up(torch.cat([sample, skip], dim=1), temb)  # @joined
        return self.conv_out(F.silu(self.norm_out(sample)))  # @norm @leave


def compute_reference_loss(network, clean, noise, timesteps):
    betas = torch.linspace(1e-3, 0.1, STEPS, dtype=torch.float32)
    alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)[timesteps]  # @kept
    sqrt_alpha = alphas_cumprod.sqrt().view(-1, 1, 1, 1)  # @root
    sqrt_sigma = (1 - alphas_cumprod).sqrt().view(-1, 1, 1, 1)  # @root
    noisy = sqrt_alpha * clean.float() + sqrt_sigma * noise.float()  # @noisy
    velocity = sqrt_alpha * noise.float() - sqrt_sigma * clean.float()  # @velocity
    predicted = network(noisy.to(clean.dtype), timesteps)
    snr = alphas_cumprod / (1 - alphas_cumprod)  # @snr
    weight = torch.clamp(snr, max=GAMMA) / (snr + 1)  # @weight
    loss = F.mse_loss(predicted.float(), velocity, reduction="none").mean(dim=(1, 2, 3))  # @error
    return (loss * weight).mean() * SCALE  # @loss


def finish_reference(network):
    for parameter in network.parameters():
        parameter.grad.div_(SCALE)  # @unscaled


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.float().unflatten(1, (GROUPS, -1)).flatten(2)  # @norm
        variance, mean = torch.var_mean(grouped, dim=-1, correction=0, keepdim=True)  # @norm @variance
        normed = ((grouped - mean) * torch.rsqrt(variance + EPSILON)).view_as(x).type_as(x)  # @norm
        shape = (-1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.bias.view(shape), normed, self.weight.view(shape))  # @norm


class Res(nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.before = nn.Sequential(Norm(enter), nn.SiLU(), nn.Conv2d(enter, leave, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(TIME, 2 * leave))
        self.norm, self.after = Norm(leave), nn.Conv2d(leave, leave, 3, padding=1)
        self.short = nn.Conv2d(enter, leave, 1) if enter != leave else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.time(time)[..., None, None].tensor_split(2, dim=1)  # @timed @parted
        h = self.norm(self.before(x))  # @silu1 @conv1
        h = torch.addcmul(h + shift, h, scale)  # @scaled
        h = self.after(F.silu(h, inplace=True))  # @silu2 @conv2
        return h.add_(x if self.short is None else self.short(x))  # @short @added


class Look(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = Norm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).mT
        q, k, v = self.qkv(places).split(WIDTH, dim=-1)  # @qkv
        y = self.out(F.scaled_dot_product_attention(q, k, v))  # @scores @soft @mixed @out
        return x + y.mT.reshape(x.shape)  # @attended


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time1, self.time2 = nn.Linear(SINUS, TIME), nn.Linear(TIME, TIME)
        self.enter = nn.Conv2d(CHANNELS, BASE, 3, padding=1)
        self.fine, self.coarse, self.back = Res(BASE, BASE), Res(BASE, WIDTH), Res(WIDTH + BASE, BASE)
        self.shrink, self.grow = nn.Conv2d(BASE, BASE, 3, 2, 1), nn.Conv2d(WIDTH, WIDTH, 3, 1, 1)
        self.look, self.norm, self.leave = Look(), Norm(BASE), nn.Conv2d(BASE, CHANNELS, 3, padding=1)

    def embed(self, moments: Tensor, like: Tensor) -> Tensor:
        half = SINUS // 2
        angles = torch.outer(moments.float(), 10000 ** (-torch.arange(half).float() / half))  # @speeds @angles
        waves = torch.cat((angles.cos(), angles.sin()), dim=1)  # @angles @waves
        return self.time2(F.silu(self.time1(waves.type_as(like))))  # @embedded

    def forward(self, x: Tensor, moments: Tensor) -> Tensor:
        time = self.embed(moments, x)
        fine = checkpoint(self.fine, self.enter(x), time, use_reentrant=False)  # @enter
        coarse = self.look(checkpoint(self.coarse, self.shrink(fine), time, use_reentrant=False))  # @down
        large = coarse.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)  # @above
        joined = torch.cat((self.grow(large), fine), dim=1)  # @up @joined
        return self.leave(F.silu(self.norm(self.back(joined, time))))  # @leave


def compute_candidate_loss(network, clean, noise, moments):
    betas = torch.linspace(1e-3, 0.1, STEPS, dtype=torch.float32)
    kept = torch.log1p(-betas).cumsum(0).exp().index_select(0, moments)[:, None, None, None]  # @kept
    signal, spread = kept.sqrt(), (1 - kept).sqrt()  # @root
    clean, noise, dtype = clean.float(), noise.float(), clean.dtype
    noisy = torch.addcmul(signal * clean, spread, noise)  # @noisy
    velocity = signal * noise - spread * clean  # @velocity
    error = network(noisy.to(dtype), moments).float() - velocity  # @error
    snr = kept / (1 - kept)  # @snr
    weight = snr.clamp(max=GAMMA) / (snr + 1)  # @weight
    return SCALE * (weight * error.square()).mean()  # @error @loss


def finish_candidate(network):
    torch._foreach_mul_([one.grad for one in network.parameters()], 1 / SCALE)  # @unscaled


def convert(weights: Weights) -> Weights:
    names = {"time_embedding.0": "time1", "time_embedding.2": "time2", "conv_in": "enter", "downsample": "shrink"}
    names |= {"upsample": "grow", "norm_out": "norm", "conv_out": "leave", "attention.norm": "look.norm"}
    names |= {"attention.qkv": "look.qkv", "attention.proj_out": "look.out"}
    for old, new in (("down", "fine"), ("mid", "coarse"), ("up", "back")):
        names |= {f"{old}.norm1": f"{new}.before.0", f"{old}.conv1": f"{new}.before.2", f"{old}.norm2": f"{new}.norm"}
        names |= {f"{old}.conv2": f"{new}.after", f"{old}.time_emb_proj": f"{new}.time.1"}
        names |= {f"{old}.conv_shortcut": f"{new}.short"}
    converted = {}
    for name, array in weights.items():
        path, _, word = name.rpartition(".")
        is_linear = path in ("attention.qkv", "attention.proj_out") and word == "weight"
        converted[f"{names[path]}.{word}"] = array[:, :, 0] if is_linear else array
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8800 + step)
    clean, noise = random.normal(size=(2, BATCH, CHANNELS, SIDE, SIDE)).astype(np.float32)
    return clean, noise, random.integers(STEPS, size=BATCH)


FAULTS = (
    Fault("sines before cosines", "waves embedded", "(angles.cos(), angles.sin())", "(angles.sin(), angles.cos())"),
    Fault("speeds reach the end", "speeds angles", "float() / half)", "float() / (half - 1))"),
    Fault("scale and shift exchanged", "parted timed scaled", "scale, shift =", "shift, scale ="),
    Fault("scale not around one", "scaled", "torch.addcmul(h + shift, h, scale)", "torch.addcmul(shift, h, scale)"),
    Fault("variance of a sample", "norm", "correction=0", "correction=1", edit="variance"),
    Fault(
        "coarse picture tiled",
        "above up",
        "coarse.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)",
        "coarse.repeat(1, 1, 2, 2)",
    ),
    Fault("skip before the coarse picture", "joined", "(self.grow(large), fine)", "(fine, self.grow(large))"),
    Fault("scores not scaled", "scores", "attention(q, k, v)", "attention(q, k, v, scale=1.0)"),
    Fault(
        "skip passes no gradient",
        "joined added",
        "self.grow(large), fine)",
        "self.grow(large), fine.detach())",
        is_backward=True,
    ),
    Fault("weight of a loss of noise", "weight", "/ (snr + 1)", "/ snr"),
    Fault("gradients stay scaled", "unscaled", "1 / SCALE", "1.0", is_backward=True),
    Fault(
        "reference predicts the other velocity",
        "velocity error",
        "sqrt_alpha * noise.float() - sqrt_sigma * clean.float()",
        "sqrt_sigma * clean.float() - sqrt_alpha * noise.float()",
        side="reference",
    ),
)
