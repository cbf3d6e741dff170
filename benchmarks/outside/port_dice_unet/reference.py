"""Segmentation of organs: a residual U-Net with group norm and transposed convolutions, soft dice plus focal loss, two depths supervised."""
import os, sys, zlib
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
import tensorprobe

CLASSES, WIDTH, SIZE, BATCH, IGNORE = 4, 6, 12, 2, 255


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 2, dilation=2, bias=False)
        self.norm2 = nn.GroupNorm(2, cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout or stride != 1 else nn.Identity()

    def forward(self, x):
        y = F.silu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.silu(y + self.skip(x))


class AttentionGate(nn.Module):
    """Attention U-Net: what comes from below says which places of the skip count."""

    def __init__(self, channels):
        super().__init__()
        self.theta = nn.Conv2d(channels, channels // 2, 1)
        self.phi = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.psi = nn.Conv2d(channels // 2, 1, 1)

    def forward(self, skip, below):
        return skip * torch.sigmoid(self.psi(F.relu(self.theta(skip) + self.phi(below), inplace=True)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.enc1, self.enc2, self.enc3 = ConvBlock(1, w), ConvBlock(w, 2 * w, 2), ConvBlock(2 * w, 2 * w, 2)
        self.up2 = nn.ConvTranspose2d(2 * w, 2 * w, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 4, stride=2, padding=1)
        self.gate2, self.gate1 = AttentionGate(2 * w), AttentionGate(w)
        self.dec2, self.dec1 = ConvBlock(4 * w, 2 * w), ConvBlock(2 * w, w)
        self.deep_head = nn.Conv2d(2 * w, CLASSES, 1)
        self.head = nn.Conv2d(w, CLASSES, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(e1)
        e3 = self.enc3(e2)
        u2 = self.up2(e3)
        d2 = self.dec2(torch.cat([self.gate2(e2, u2), u2], dim=1))
        u1 = self.up1(d2)
        d1 = self.dec1(torch.cat([self.gate1(e1, u1), u1], dim=1))
        deep = F.interpolate(self.deep_head(d2), scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(d1), deep


def dice_loss(logits, target, valid, smooth=1.0):
    prob = logits.softmax(dim=1)
    onehot = F.one_hot(target, CLASSES).permute(0, 3, 1, 2).float()
    prob, onehot = prob * valid[:, None], onehot * valid[:, None]
    inter = (prob * onehot).sum(dim=(0, 2, 3))
    total = prob.pow(2).sum(dim=(0, 2, 3)) + onehot.sum(dim=(0, 2, 3))
    dice = (2 * inter + smooth) / (total + smooth)
    return 1 - dice[1:].mean()  # without the background


def focal_loss(logits, labels, weight, gamma=2.0):
    ce = F.cross_entropy(logits, labels, weight=weight, ignore_index=IGNORE, reduction="none")
    pt = torch.exp(-F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none"))
    return ((1 - pt) ** gamma * ce).sum() / (labels != IGNORE).sum()


def criterion(outputs, labels):
    valid = labels != IGNORE
    target = labels.masked_fill(~valid, 0)
    weight = torch.tensor([0.5, 1.0, 1.5, 2.0])
    loss = 0
    for factor, logits in zip((1.0, 0.4), outputs):
        loss = loss + factor * (dice_loss(logits, target, valid) + focal_loss(logits, labels, weight))
    return loss


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        value = 1 + 0.2 * value
    elif len(shape) == 1:
        value = 0.2 * value
    else:
        value = value * 1.2 / np.sqrt(np.prod(shape[1:]))
    return value.astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(70 + step)
    image = rng.standard_normal((BATCH, 1, SIZE, SIZE)).astype(np.float32)
    labels = rng.randint(0, CLASSES, (BATCH, SIZE // 3, SIZE // 3)).repeat(3, 1).repeat(3, 2)
    labels[:, :, -1] = IGNORE
    return image, labels


def main():
    net = UNet()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=0.02, momentum=0.9, nesterov=True)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            image, labels = (torch.from_numpy(a) for a in make_batch(step))
            loss = criterion(net(image), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step()
            print(f"step {step} loss {loss.item():.8f} w {sum(p.detach().double().pow(2).sum() for p in net.parameters()):.8f}")


if __name__ == "__main__":
    main()
