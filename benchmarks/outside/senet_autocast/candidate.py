"""SE-ResNet in bfloat16 autocast and channels_last. Norms and the loss stay in float32 where autocast says so."""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

AMP = getattr(torch, os.environ.get("AMP_DTYPE", "bfloat16"))


class SE(nn.Module):
    def __init__(self, c, r=4):
        super().__init__()
        self.reduce = nn.Conv2d(c, c // r, 1)
        self.expand = nn.Conv2d(c // r, c, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        gate = self.expand(self.reduce(self.pool(x)).relu())
        gate = gate.sigmoid()
        return gate * x


class Block(nn.Module):
    def __init__(self, cin, cout, stride, groups=4):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, stride, 1, groups=2, bias=False)
        self.gn1, self.gn2 = nn.GroupNorm(groups, cout), nn.GroupNorm(groups, cout)
        self.se = SE(cout)
        same = stride == 1 and cin == cout
        self.down = nn.Identity() if same else nn.Sequential(
            nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False),
            nn.Conv2d(cin, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x):
        y = F.relu(self.gn1(self.conv1(x)), inplace=True)
        y = self.se(self.gn2(self.conv2(y)))
        return F.relu(y + self.down(x), inplace=True)


class Network(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        bn = nn.BatchNorm2d(8, momentum=0.1)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), bn, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def groups(model, weight_decay=0.02):
    plain, decay = [], []
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            no_decay = isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)) or name == "bias"
            (plain if no_decay else decay).append(p)
    return [{"params": plain, "weight_decay": 0.0}, {"params": decay, "weight_decay": weight_decay}]


def load_batch(step, n=6, size=12):
    rng = np.random.default_rng(step + 31)
    x = rng.normal(0.2, 1.0, (n, 3, size, size)).astype("f4")
    y = rng.integers(0, 7, n)
    return torch.from_numpy(x).to(memory_format=torch.channels_last), torch.from_numpy(y)


def run(folder):
    model = Network()
    model.load_state_dict(torch.load(os.path.join(os.environ["WEIGHTS"], "senet.pt")))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, foreach=True)
    debugger = PrecisionDebugger(dump_path=folder, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        x, y = load_batch(step)
        xt, yt = load_batch(step + 900)
        debugger.start(model)
        model.train()
        with torch.autocast("cpu", dtype=AMP, enabled=AMP != torch.float32):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=AMP, enabled=AMP != torch.float32):
            test = F.cross_entropy(model(xt).float(), yt)
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        print(f"step {step} loss {loss.item():.6f} grad {grad:.6f} test {test.item():.6f} "
              f"params {sum(p.detach().double().abs().sum() for p in model.parameters()):.6f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    run(sys.argv[1])
