"""Two-tower contrastive training (CLIP), parameters in float32, forward under autocast(bfloat16),
loss scaling as GradScaler does it (there is none for a CPU)."""
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

AMP = getattr(torch, os.environ.get("DTYPE", "bfloat16"))


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1 = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), QuickGELU(), nn.Linear(4 * width, width))

    def attention(self, x):
        b, n, w = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * (w // self.heads) ** -0.5
        if self.causal:
            dots = dots + torch.full((n, n), float("-inf")).triu_(1)  # float32 from here on
        attn = dots.float().softmax(dim=-1)
        return self.out_proj(torch.matmul(attn, v).transpose(1, 2).reshape(b, n, w))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class VisionTower(nn.Module):
    def __init__(self, size=12, patch=4, width=16, heads=2, layers=1, embed=12):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros((size // patch) ** 2 + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*[ResidualAttentionBlock(width, heads, False) for _ in range(layers)])
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.zeros(width, embed))

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        cls = self.class_embedding.expand(len(x), 1, -1)
        x = torch.cat([cls, x], dim=1) + self.positional_embedding
        x = self.blocks(self.ln_pre(x))
        return self.ln_post(x[:, 0]) @ self.proj


class TextTower(nn.Module):
    def __init__(self, vocab=30, context=9, width=16, heads=2, layers=2, embed=12):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*[ResidualAttentionBlock(width, heads, True) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.zeros(width, embed))

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.blocks(x))
        # the end of the text has the highest number in every sequence
        return x[torch.arange(len(x)), text.argmax(dim=-1)] @ self.text_projection


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = VisionTower()
        self.text = TextTower()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, image, text):
        image_features = F.normalize(self.visual(image).float(), dim=-1)
        text_features = F.normalize(self.text(text).float(), dim=-1)
        logits_per_image = self.logit_scale.exp() * image_features @ text_features.t()
        labels = torch.arange(len(image))
        with torch.autocast("cpu", enabled=False):
            logits = logits_per_image.float()
            return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Scaler:
    def __init__(self, scale=512.0, growth_interval=2):
        self.scale, self.good, self.growth_interval = scale, 0, growth_interval

    def step(self, optimizer, model):
        grads = [p.grad for p in model.parameters()]
        for g in grads:
            g.mul_(1.0 / self.scale)
        if all(torch.isfinite(g).all() for g in grads):
            optimizer.step()
            self.good += 1
            if self.good % self.growth_interval == 0:
                self.scale *= 2
        else:
            self.scale /= 2


def numpy_weights(model):
    rng = np.random.default_rng(33)
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.from_numpy(np.asarray(rng.standard_normal(tuple(p.shape)), dtype=np.float32))
            if "ln_" in name or name.endswith("bias"):
                p.copy_((1.0 if "ln_" in name and "weight" in name else 0.0) + 0.1 * z)
            elif "embedding" in name:
                p.copy_(0.5 * z)
            elif p.ndim:
                p.copy_(z / (p.shape[0] if name.endswith("proj") or "text_proj" in name else p[0].numel()) ** 0.5)


def pairs(step, n=5, context=9):
    rng = np.random.default_rng(8000 + step)
    image = torch.from_numpy(rng.standard_normal((n, 3, 12, 12)).astype(np.float32))
    text = np.zeros((n, context), dtype=np.int64)
    for row in text:
        length = rng.integers(2, context)
        row[:length] = rng.integers(1, 29, length)
        row[length] = 29
    return image, torch.from_numpy(text)


def main():
    model = CLIP()
    numpy_weights(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "clip.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.2)
    scaler = Scaler()
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        image, text = pairs(step)
        debugger.start(model)
        with torch.autocast("cpu", dtype=AMP, enabled=AMP != torch.float32):
            loss = model(image, text)
        (loss * scaler.scale).backward()
        scaler.step(optimizer, model)
        debugger.stop()
        grad = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt()
        size = sum(p.detach().double().square().sum() for p in model.parameters()).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {size:.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
