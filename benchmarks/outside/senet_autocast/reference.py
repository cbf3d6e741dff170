"""Small SE-ResNet on random pictures, float32."""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // reduction, 1)
        self.expand = nn.Conv2d(channels // reduction, channels, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        s = torch.sigmoid(self.expand(F.relu(self.reduce(s))))
        return x * s


class Bottleneck(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 1, bias=False)
        self.gn1 = nn.GroupNorm(4, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, stride=stride, padding=1, groups=2, bias=False)
        self.gn2 = nn.GroupNorm(4, cout)
        self.se = SqueezeExcite(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.AvgPool2d(stride, stride), nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        skip = x if self.down is None else self.down(x)
        x = F.relu(self.gn1(self.conv1(x)))
        x = self.gn2(self.conv2(x))
        return F.relu(self.se(x) + skip)


class SEResNet(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=1, padding=1, bias=False),
            nn.BatchNorm2d(8, momentum=0.1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.Sequential(Bottleneck(8, 16, 2), Bottleneck(16, 16, 1))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.fc(x.mean((2, 3)))


def initialise(model):
    rng = np.random.default_rng(13)
    with torch.no_grad():
        for name, p in model.named_parameters():
            v = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype("f4"))
            p.copy_(v * (1.6 / p[0].numel()) ** 0.5 if p.ndim > 1 else 0.1 * v + (1.0 if "bias" not in name else 0.0))


def pictures(step, batch=6, size=12):
    rng = np.random.default_rng(step + 31)
    return (torch.from_numpy(rng.normal(0.2, 1.0, (batch, 3, size, size)).astype("f4")),
            torch.from_numpy(rng.integers(0, 7, batch)))


def main():
    model = SEResNet()
    initialise(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "senet.pt"))
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}], lr=0.1, momentum=0.9)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        images, labels = pictures(step)
        test_images, test_labels = pictures(step + 900)
        debugger.start(model)
        model.train()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            test_loss = F.cross_entropy(model(test_images), test_labels)
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        print(f"step {step} loss {loss.item():.6f} grad {grad:.6f} test {test_loss.item():.6f} "
              f"params {sum(p.detach().double().abs().sum() for p in model.parameters()):.6f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
