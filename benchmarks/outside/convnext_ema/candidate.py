"""ConvNeXt for deployment: NCHW all the way with 1x1 convolutions and channels_last memory,
hand-written label smoothing, EMA and warmup (we got rid of the scheduler classes)."""
import copy
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

BASE_LR, WARMUP, DECAY, SMOOTHING, EMA_DECAY = 0.05, 4, 0.05, 0.1, 0.8


class LayerNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=1, keepdim=True, unbiased=False)
        x = (x - mean) * torch.rsqrt(var + self.eps)
        return x * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, c, mlp_ratio=3):
        super().__init__()
        self.conv_dw = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = LayerNorm2d(c)
        self.fc1 = nn.Conv2d(c, mlp_ratio * c, 1)
        self.fc2 = nn.Conv2d(mlp_ratio * c, c, 1)
        self.gamma = nn.Parameter(torch.full((c, 1, 1), 0.5))

    def forward(self, x):
        y = self.norm(self.conv_dw(x))
        y = self.fc2(F.gelu(self.fc1(y)))
        return torch.addcmul(x, y, self.gamma)


class Net(nn.Module):
    def __init__(self, c1=8, c2=16, classes=6):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, c1, 2, stride=2, bias=False)
        self.stem_bn = nn.BatchNorm2d(c1)
        self.blocks1 = nn.ModuleList([ConvNeXtBlock(c1)])
        self.down_norm = LayerNorm2d(c1)
        self.down_conv = nn.Conv2d(c1, c2, 2, stride=2)
        self.blocks2 = nn.ModuleList([ConvNeXtBlock(c2), ConvNeXtBlock(c2)])
        self.head_norm = nn.LayerNorm(c2, eps=1e-6)
        self.fc = nn.Linear(c2, classes)

    def forward(self, x):
        x = self.stem_bn(self.stem_conv(x))
        for block in self.blocks1:
            x = block(x)
        x = self.down_conv(self.down_norm(x))
        for block in self.blocks2:
            x = block(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(self.head_norm(x))


RENAME = [("stem.0", "stem_conv"), ("stem.1", "stem_bn"), ("stage1", "blocks1"), ("stage2", "blocks2"), ("downsample.0", "down_norm"),
          ("downsample.1", "down_conv"), ("dwconv", "conv_dw"), ("pwconv", "fc"), ("head.", "fc.")]


def remap(sd, model):
    out = {}
    for key, value in sd.items():
        key = "head_norm" + key[4:] if key.startswith("norm.") else key
        for old, new in RENAME:
            key = key.replace(old, new)
        out[key] = value.reshape(model.state_dict()[key].shape)
    return out


class ModelEma:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        # the first update is a plain copy, as in swa_utils
        d = self.decay if self.updates else 0.0
        self.updates += 1
        for e, v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if e.is_floating_point():
                e.copy_(d * e + (1.0 - d) * v)
            else:
                e.copy_(v)


def soft_cross_entropy(logits, labels):
    n = logits.shape[1]
    target = F.one_hot(labels, n) * (1.0 - SMOOTHING) + SMOOTHING / n
    return -(target * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def build_optimizer(model):
    skip = {n for n, p in model.named_parameters() if p.ndim == 1 or n.endswith("gamma")}
    with_decay = [p for n, p in model.named_parameters() if n not in skip]
    without = [p for n, p in model.named_parameters() if n in skip]
    return torch.optim.SGD(
        [dict(params=with_decay, weight_decay=DECAY), dict(params=without)], lr=BASE_LR, momentum=0.9, nesterov=True
    )


def set_lr(optimizer, step):
    factor = min(1.0, (step + 1) / WARMUP)
    for group in optimizer.param_groups:
        group["lr"] = BASE_LR * factor


def fetch(step):
    g = np.random.default_rng(60 + step)
    x = torch.tensor(g.standard_normal((5, 3, 16, 16)).astype(np.float32) * 0.9 + 0.3)
    y = torch.tensor(g.integers(0, 6, 5))
    return x.contiguous(memory_format=torch.channels_last), y


def main():
    net = Net()
    net.load_state_dict(remap(torch.load(os.path.join(os.environ["WEIGHTS"], "convnext.pt")), net))
    net = net.to(memory_format=torch.channels_last)
    ema = ModelEma(net, EMA_DECAY)
    optimizer = build_optimizer(net)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "3"))):
        x, y = fetch(step)
        set_lr(optimizer, step)
        probe.start(net)
        net.train()
        loss = soft_cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        ema.update(net)
        with torch.no_grad():
            ema_loss = soft_cross_entropy(ema.module(x), y)
        probe.stop()
        grad = torch.cat([p.grad.double().flatten() for p in net.parameters() if p.grad is not None]).norm()
        size = torch.cat([p.detach().double().flatten() for p in net.parameters()]).norm()
        print(f"step {step} loss {loss.item():.8f} ema {ema_loss.item():.8f} grad {grad:.8f} params {size:.8f}")
        optimizer.zero_grad(set_to_none=True)
        probe.step()


if __name__ == "__main__":
    main()
