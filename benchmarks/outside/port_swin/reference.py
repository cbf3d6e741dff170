"""Swin transformer: shifted windows, relative position bias, patch merging, layer scale; label smoothing, SGD with Nesterov."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

IMAGE, PATCH, DIM, WINDOW, CLASSES, BATCH = 16, 2, 8, 4, 5, 2
DEPTHS, HEADS = (2, 1), (2, 4)


def window_partition(x, w):
    b, h, wd, c = x.shape
    x = x.view(b, h // w, w, wd // w, w, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, c)


def window_reverse(windows, w, h, wd):
    b = windows.shape[0] // (h * wd // w // w)
    x = windows.view(b, h // w, wd // w, w, w, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, wd, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.relative_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("relative_index", relative[..., 0] * (2 * window - 1) + relative[..., 1])
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        bw, n, c = x.shape
        qkv = self.qkv(x).reshape(bw, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_bias_table[self.relative_index.view(-1)].view(n, n, -1).permute(2, 0, 1)
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(bw // windows, windows, self.heads, n, n) + mask[None, :, None]
            attn = attn.view(bw, self.heads, n, n)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(bw, n, c))


class SwinBlock(nn.Module):
    def __init__(self, dim, heads, size, shift):
        super().__init__()
        self.shift = shift if size > WINDOW else 0
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, heads, WINDOW)
        self.gamma1 = nn.Parameter(torch.zeros(dim))
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.gamma2 = nn.Parameter(torch.zeros(dim))
        mask = None
        if self.shift:
            region = torch.zeros(1, size, size, 1)
            slices = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
            count = 0
            for rows in slices:
                for columns in slices:
                    region[:, rows, columns] = count
                    count += 1
            region = window_partition(region, WINDOW).squeeze(-1)
            mask = (region[:, None] - region[:, :, None]).ne(0).float() * -100.0
        self.register_buffer("mask", mask)

    def forward(self, x):
        b, h, w, c = x.shape
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.attn(window_partition(y, WINDOW), self.mask)
        y = window_reverse(y, WINDOW, h, w)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + self.gamma1 * y
        return x + self.gamma2 * self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        return self.reduction(self.norm(x))


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.patch_norm = nn.LayerNorm(DIM)
        size = IMAGE // PATCH
        self.stage1 = nn.Sequential(*[SwinBlock(DIM, HEADS[0], size, (i % 2) * WINDOW // 2) for i in range(DEPTHS[0])])
        self.merge = PatchMerging(DIM)
        self.stage2 = nn.Sequential(*[SwinBlock(2 * DIM, HEADS[1], size // 2, (i % 2) * WINDOW // 2) for i in range(DEPTHS[1])])
        self.norm = nn.LayerNorm(2 * DIM)
        self.head = nn.Linear(2 * DIM, CLASSES)

    def forward(self, image):
        x = self.patch_norm(self.patch_embed(image).permute(0, 2, 3, 1))
        x = self.stage2(self.merge(self.stage1(x)))
        return self.head(self.norm(x).mean(dim=(1, 2)))


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    if "gamma" in name:
        return (0.5 + 0.1 * value).astype(np.float32)
    if "bias_table" in name:
        return (0.5 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.1 * value).astype(np.float32)
    return (value / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(60 + step)
    image = rng.normal(0, 1, (BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
    return image, rng.randint(0, CLASSES, BATCH)


def main():
    net = Swin()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    plain = [p for n, p in net.named_parameters() if p.ndim == 1 or "bias_table" in n]
    decayed = [p for n, p in net.named_parameters() if not (p.ndim == 1 or "bias_table" in n)]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}]
    opt = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            image, label = (torch.from_numpy(a) for a in make_batch(step))
            loss = criterion(net(image), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
