"""Conformer encoder with relative attention and CTC; Adam with the warm-up of Noam."""
import math
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

MELS, FRAMES, DIM, HEADS, KERNEL, LAYERS, VOCAB, BATCH = 6, 24, 16, 2, 5, 1, 7, 3
WARMUP = 4


class Subsampling(nn.Module):
    """Two frames to one."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MELS, DIM, 3, stride=2, padding=1)
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x, length):
        x = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.linear(x) * math.sqrt(DIM), (length + 1) // 2


def relative_positions(t):
    """Sines of the distances t - 1, ..., 0, ..., -(t - 1)."""
    position = torch.arange(t - 1, -t, -1.0).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, DIM, 2.0) * -(math.log(10000.0) / DIM))
    table = torch.zeros(2 * t - 1, DIM)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.fc1 = nn.Linear(DIM, 2 * DIM)
        self.fc2 = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.fc2(F.silu(self.fc1(self.norm(x))))


class RelativeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = DIM // HEADS
        self.norm = nn.LayerNorm(DIM)
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.k = nn.Linear(DIM, DIM, bias=False)
        self.v = nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, DIM)
        self.pos = nn.Linear(DIM, DIM, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(HEADS, self.d))
        self.bias_v = nn.Parameter(torch.zeros(HEADS, self.d))

    @staticmethod
    def shift(x):
        b, h, t, n = x.shape
        x = F.pad(x, (1, 0)).view(b, h, n + 1, t)
        return x[:, :, 1:].reshape(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x, positions, valid):
        b, t, _ = x.shape
        x = self.norm(x)
        q = self.q(x).view(b, t, HEADS, self.d)
        k = self.k(x).view(b, t, HEADS, self.d).transpose(1, 2)
        v = self.v(x).view(b, t, HEADS, self.d).transpose(1, 2)
        p = self.pos(positions).view(1, -1, HEADS, self.d).transpose(1, 2)
        content = (q + self.bias_u).transpose(1, 2) @ k.transpose(-2, -1)
        position = self.shift((q + self.bias_v).transpose(1, 2) @ p.transpose(-2, -1))
        score = (content + position) / math.sqrt(self.d)
        blocked = ~valid[:, None, None]
        weight = torch.softmax(score.masked_fill(blocked, -1e9), dim=-1).masked_fill(blocked, 0.0)
        return self.out((weight @ v).transpose(1, 2).reshape(b, t, DIM))


class ConvModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.pointwise1 = nn.Conv1d(DIM, 2 * DIM, 1)
        self.depthwise = nn.Conv1d(DIM, DIM, KERNEL, padding=KERNEL // 2, groups=DIM, bias=False)
        self.batch_norm = nn.BatchNorm1d(DIM)
        self.pointwise2 = nn.Conv1d(DIM, DIM, 1)

    def forward(self, x, valid):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pointwise1(x), dim=1)
        x = x.masked_fill(~valid[:, None], 0.0)
        x = F.silu(self.batch_norm(self.depthwise(x)))
        return self.pointwise2(x).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff1, self.attention, self.conv, self.ff2 = FeedForward(), RelativeAttention(), ConvModule(), FeedForward()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x, positions, valid):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(x, positions, valid)
        x = x + self.conv(x, valid)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x)


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsampling = Subsampling()
        self.blocks = nn.ModuleList(ConformerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, audio, frames):
        x, length = self.subsampling(audio, frames)
        valid = torch.arange(x.shape[1])[None] < length[:, None]
        positions = relative_positions(x.shape[1])
        for block in self.blocks:
            x = block(x, positions, valid)
        return F.log_softmax(self.head(x), dim=-1), length


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.1 * value).astype(np.float32)
    return (value / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(80 + step)
    frames = np.array([FRAMES, FRAMES - 5, FRAMES - 8])
    audio = rng.normal(0, 1, (BATCH, FRAMES, MELS)).astype(np.float32)
    audio[np.arange(FRAMES)[None] >= frames[:, None]] = 0
    text = rng.randint(1, VOCAB, (BATCH, 4))
    text[:, 1] = text[:, 0]  # a letter twice: a blank has to come between
    letters = np.array([4, 3, 2])
    text[np.arange(4)[None] >= letters[:, None]] = 0
    return audio, frames, text, letters


def main():
    net = Conformer()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    opt = torch.optim.Adam(net.parameters(), betas=(0.9, 0.98), eps=1e-9)
    net.train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            for group in opt.param_groups:
                group["lr"] = 0.1 * DIM**-0.5 * min((step + 1) ** -0.5, (step + 1) * WARMUP**-1.5)
            audio, frames, text, letters = (torch.from_numpy(a) for a in make_batch(step))
            logp, length = net(audio, frames)
            loss = F.ctc_loss(logp.transpose(0, 1), text, length, letters, blank=0, reduction="mean")
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
