"""Binary segmentation: a two-level U-Net with BatchNorm, focal + dice loss, SGD with Nesterov momentum."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import tensorprobe

STEPS = int(os.environ.get("STEPS", 2))


def conv_bn(cin, cout, k=3, stride=1, groups=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = conv_bn(cin, cout)
        # depthwise separable second half
        self.dw = conv_bn(cout, cout, groups=cout)
        self.pw = conv_bn(cout, cout, k=1)

    def forward(self, x):
        x = self.conv1(x)
        return x + self.pw(self.dw(x))


class Up(nn.Module):
    def __init__(self, cin, cskip, cout):
        super().__init__()
        self.conv = DoubleConv(cin + cskip, cout)

    def forward(self, x, skip):
        x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 2 * width))
        self.up1 = Up(2 * width, 2 * width, width)
        self.up2 = Up(width, width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.head(self.up2(self.up1(x3, x2), x1))


class FocalDiceLoss(nn.Module):
    def __init__(self, alpha=0.25, gamma=2.0, smooth=1.0, dice_weight=0.5):
        super().__init__()
        self.alpha, self.gamma, self.smooth, self.dice_weight = alpha, gamma, smooth, dice_weight

    def focal(self, logits, target):
        bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p = torch.sigmoid(logits)
        p_t = p * target + (1 - p) * (1 - target)
        alpha_t = self.alpha * target + (1 - self.alpha) * (1 - target)
        # the modulating factor is a weight, not a part of the objective
        weight = (alpha_t * (1 - p_t) ** self.gamma).detach()
        return (weight * bce).mean()

    def dice(self, logits, target):
        p = torch.sigmoid(logits).flatten(1)
        t = target.flatten(1)
        inter = (p * t).sum(1)
        score = (2.0 * inter + self.smooth) / (p.sum(1) + t.sum(1) + self.smooth)
        return 1 - score.mean()

    def forward(self, logits, target):
        return self.focal(logits, target) + self.dice_weight * self.dice(logits, target)


def initial(name, shape):
    """The start value of a parameter: the same in the port, which has a copy of this."""
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if len(shape) == 1:
        return (rng.uniform(0.7, 1.3, shape) if name.endswith("weight") else rng.uniform(-0.2, 0.2, shape)).astype(np.float32)
    return (rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(100 + step)
    image = rng.standard_normal((4, 3, 14, 14)).astype(np.float32)
    yy, xx = np.mgrid[:14, :14]
    mask = np.stack([((yy - cy) ** 2 + (xx - cx) ** 2 < r * r) for cy, cx, r in zip((4, 7, 9, 5), (6, 3, 8, 10), (3, 2, 4, 2.5))])
    image += 0.8 * mask[:, None]
    return image, mask[:, None].astype(np.float32)


def main():
    net = UNet()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    criterion = FocalDiceLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    net.train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(STEPS):
            image, mask = map(torch.from_numpy, make_batch(step))
            optimizer.zero_grad()
            loss = criterion(net(image), mask)
            loss.backward()
            optimizer.step()
            # validation, with the running statistics
            net.eval()
            with torch.no_grad():
                pred = (torch.sigmoid(net(image)) > 0.5).float()
                iou = ((pred * mask).sum() + 1e-6) / ((pred + mask).clamp(max=1).sum() + 1e-6)
            net.train()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            running = sum(float(b.double().abs().sum()) for n, b in net.named_buffers() if "running" in n)
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f} running {running:.6f} iou {iou.item():.6f}")


if __name__ == "__main__":
    main()
