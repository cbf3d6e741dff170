"""ConvNeXt (atto-ish), the official way: NHWC inside the block, LayerNorm and Linear on the last axis.
SGD with Nesterov momentum, linear warmup, label smoothing, EMA by torch.optim.swa_utils."""
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tensorprobe.pytorch import PrecisionDebugger


class Block(nn.Module):
    def __init__(self, dim, layer_scale_init=0.5, expansion=3):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, expansion * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(expansion * dim, dim)
        self.gamma = nn.Parameter(layer_scale_init * torch.ones(dim))

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pwconv2(self.act(self.pwconv1(x)))
        x = self.gamma * x
        return shortcut + x.permute(0, 3, 1, 2)


class ChannelsFirstLayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXt(nn.Module):
    def __init__(self, dims=(8, 16), depths=(1, 2), num_classes=6):
        super().__init__()
        # batch norm in the stem, "early convolutions help"
        self.stem = nn.Sequential(
            nn.Conv2d(3, dims[0], kernel_size=2, stride=2, bias=False), nn.BatchNorm2d(dims[0])
        )
        self.stage1 = nn.Sequential(*[Block(dims[0]) for _ in range(depths[0])])
        self.downsample = nn.Sequential(
            ChannelsFirstLayerNorm(dims[0]), nn.Conv2d(dims[0], dims[1], kernel_size=2, stride=2)
        )
        self.stage2 = nn.Sequential(*[Block(dims[1]) for _ in range(depths[1])])
        self.norm = nn.LayerNorm(dims[1], eps=1e-6)
        self.head = nn.Linear(dims[1], num_classes)

    def forward(self, x):
        x = self.stage1(self.stem(x))
        x = self.stage2(self.downsample(x))
        return self.head(self.norm(x.mean([-2, -1])))


def seeded_weights(model):
    gen = np.random.default_rng(11)
    with torch.no_grad():
        for name, p in model.named_parameters():
            draw = torch.as_tensor(gen.standard_normal(tuple(p.shape)), dtype=p.dtype)
            if p.ndim > 1:
                p.copy_(draw * (1.5 / p[0].numel()) ** 0.5)
            else:
                p.add_(0.1 * draw)


def images(step, n=5, size=16):
    gen = np.random.default_rng(60 + step)
    x = gen.standard_normal((n, 3, size, size)).astype(np.float32) * 0.9 + 0.3
    return torch.from_numpy(x), torch.from_numpy(gen.integers(0, 6, n))


def optimizer_groups(model, weight_decay=0.05):
    decay = [p for _, p in model.named_parameters() if p.ndim > 1]
    rest = [p for _, p in model.named_parameters() if p.ndim <= 1]  # biases, norms, layer scales
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def main(args):
    torch.manual_seed(3)
    model = ConvNeXt()
    seeded_weights(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "convnext.pt"))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    ema.eval()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(optimizer_groups(model), lr=args.lr, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    debugger = PrecisionDebugger(
        dump_path=args.dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")
    )
    for step in range(args.steps):
        x, y = images(step)
        debugger.start(model)
        model.train()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        with torch.no_grad():
            ema_loss = criterion(ema(x), y)
        debugger.stop()
        scheduler.step()
        gnorm = sum(p.grad.double().pow(2).sum() for p in model.parameters()) ** 0.5
        pnorm = sum(p.detach().double().pow(2).sum() for p in model.parameters()) ** 0.5
        print(f"step {step} loss {loss.item():.8f} ema {ema_loss.item():.8f} grad {gnorm:.8f} params {pnorm:.8f}")
        optimizer.zero_grad(set_to_none=True)
        debugger.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dump")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", "3")))
    main(parser.parse_args())
