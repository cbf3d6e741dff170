"""Small ViT on made-up images: mixup + label smoothing, AdamW with two parameter groups, cosine schedule.

Model in the style of timm / BEiT (q and v have a bias, k has none), LayerScale, DropPath (rate 0 here).
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

IMG, PATCH, DIM, HEADS, DEPTH, CLASSES = 16, 4, 24, 3, 2, 7
SMOOTHING = 0.1
LR, MIN_LR, WD = 2e-3, 1e-5, 0.05


def drop_path(x, drop_prob=0.0, training=False):
    if drop_prob == 0.0 or not training:
        return x
    keep = 1 - drop_prob
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * mask / keep


class DropPath(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        return drop_path(x, self.p, self.training)


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, DIM, kernel_size=PATCH, stride=PATCH)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("k_bias", torch.zeros(dim), persistent=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = F.linear(x, self.qkv.weight, torch.cat((self.q_bias, self.k_bias, self.v_bias)))
        q, k, v = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, num_heads, dpr=0.0, init_values=0.3):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 2 * dim)
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))
        self.drop_path = DropPath(dpr)

    def forward(self, x):
        x = x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x)))
        x = x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))
        return x


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = PatchEmbed()
        n = (IMG // PATCH) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, n + 1, DIM))
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, CLASSES)

    def no_weight_decay(self):
        return {"pos_embed", "cls_token"}

    def forward(self, img):
        x = self.patch_embed(img)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])


def init_weights(model, seed=0):
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.ndim == 1 and "norm" in name and name.endswith("weight"):
                p.copy_(1 + 0.1 * torch.randn(p.shape, generator=g))
            elif "gamma_" not in name:
                p.copy_((0.25 if p.ndim > 1 else 0.05) * torch.randn(p.shape, generator=g))


def param_groups(model, weight_decay):
    skip = model.no_weight_decay()
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if p.ndim == 1 or name.endswith(".bias") or name in skip:
            no_decay.append(p)
        else:
            decay.append(p)
    return [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": weight_decay}]


def one_hot(x, num_classes, on_value=1.0, off_value=0.0):
    x = x.long().view(-1, 1)
    return torch.full((x.size(0), num_classes), off_value).scatter_(1, x, on_value)


def mixup_target(target, lam, smoothing):
    off_value = smoothing / CLASSES
    on_value = 1.0 - smoothing + off_value
    y1 = one_hot(target, CLASSES, on_value, off_value)
    y2 = one_hot(target.flip(0), CLASSES, on_value, off_value)
    return y1 * lam + y2 * (1.0 - lam)


def mixup(x, target, lam):
    return x * lam + x.flip(0) * (1.0 - lam), mixup_target(target, lam, SMOOTHING)


class SoftTargetCrossEntropy(nn.Module):
    def forward(self, x, target):
        return torch.sum(-target * F.log_softmax(x, dim=-1), dim=-1).mean()


def get_batch(step):
    rng = np.random.RandomState(7 + step)
    image = rng.randn(6, 3, IMG, IMG).astype(np.float32)
    label = rng.randint(0, CLASSES, 6)
    image += 0.3 * label[:, None, None, None].astype(np.float32) / CLASSES
    return torch.from_numpy(image), torch.from_numpy(label), float(rng.beta(0.8, 0.8))


def main():
    steps = int(os.environ.get("STEPS", 3))
    model = VisionTransformer()
    init_weights(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "vit.pth"))
    model.train()
    optimizer = torch.optim.AdamW(param_groups(model, WD), lr=LR)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3, eta_min=MIN_LR)
    criterion = SoftTargetCrossEntropy()
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))

    for step in range(steps):
        images, labels, lam = get_batch(step)
        debugger.start(model)
        images, targets = mixup(images, labels, lam)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        scheduler.step()
        total = lambda ts: np.sqrt(sum(float(t.double().pow(2).sum()) for t in ts if t is not None))
        gnorm, wnorm = total(p.grad for p in model.parameters()), total(p.detach() for p in model.parameters())
        norms = total(p.detach() for n, p in model.named_parameters() if "norm" in n)
        print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f} norms {norms:.8f}")


if __name__ == "__main__":
    main()
