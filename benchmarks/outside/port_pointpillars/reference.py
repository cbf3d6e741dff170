"""PointPillars: dynamic pillars with scatter max, a BEV backbone with two scales, focal and smooth L1 losses."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

GRID, VOXEL, BATCH, CLASSES, PER_CELL = 8, 1.0, 2, 2, 2
ANCHORS = GRID * GRID // 4 * PER_CELL
FEATURES = 12


class PillarEncoder(nn.Module):
    """Points of any number per pillar: linear, batch norm over all points, max per pillar."""

    def __init__(self, out):
        super().__init__()
        self.linear = nn.Linear(9, out, bias=False)
        self.bn = nn.BatchNorm1d(out, eps=1e-3, momentum=0.01)

    def forward(self, points):
        sample, xyz = points[:, 0].long(), points[:, 1:4]
        cell = torch.floor(points[:, 1:3] / VOXEL).long()  # x, y
        key = sample * GRID * GRID + cell[:, 1] * GRID + cell[:, 0]
        pillars, inverse = torch.unique(key, return_inverse=True)
        count = torch.bincount(inverse).unsqueeze(1)
        total = torch.zeros(len(pillars), 3).index_add_(0, inverse, xyz)
        cluster = xyz - (total / count)[inverse]
        centre = points[:, 1:3] - (cell + 0.5) * VOXEL
        x = torch.cat([points[:, 1:], cluster, centre], dim=1)
        x = F.relu(self.bn(self.linear(x)))
        index = inverse.unsqueeze(1).expand_as(x)
        pooled = x.new_zeros(len(pillars), x.shape[1]).scatter_reduce(0, index, x, reduce="amax", include_self=False)
        return pooled, pillars


class BEVScatter(nn.Module):
    def forward(self, features, pillars):
        canvas = features.new_zeros(BATCH * GRID * GRID, features.shape[1])
        canvas[pillars] = features
        return canvas.view(BATCH, GRID, GRID, -1).permute(0, 3, 1, 2).contiguous()


class ConvBN(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.01)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class UpBN(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(cin, cout, stride, stride=stride, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.01)

    def forward(self, x):
        return F.relu(self.bn(self.deconv(x)))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(ConvBN(FEATURES, 12, 2), ConvBN(12, 12))
        self.stage2 = nn.Sequential(ConvBN(12, 16, 2), ConvBN(16, 16))
        self.up1 = UpBN(12, 8, 1)
        self.up2 = UpBN(16, 8, 2)

    def forward(self, x):
        low = self.stage1(x)
        high = self.stage2(low)
        return torch.cat([self.up1(low), self.up2(high)], dim=1)


class AnchorHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls = nn.Conv2d(16, PER_CELL * CLASSES, 1)
        self.box = nn.Conv2d(16, PER_CELL * 7, 1)
        self.dir = nn.Conv2d(16, PER_CELL * 2, 1)

    def forward(self, x):
        def flat(y, last):
            return y.permute(0, 2, 3, 1).reshape(BATCH, -1, last)

        return flat(self.cls(x), CLASSES), flat(self.box(x), 7), flat(self.dir(x), 2)


class PointPillars(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = PillarEncoder(FEATURES)
        self.scatter = BEVScatter()
        self.backbone = Backbone()
        self.head = AnchorHead()

    def forward(self, points):
        features, pillars = self.encoder(points)
        return self.head(self.backbone(self.scatter(features, pillars)))


def focal(logits, target, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    alpha_t = alpha * target + (1 - alpha) * (1 - target)
    return alpha_t * (1 - p_t) ** gamma * ce


def losses(outputs, labels, boxes, directions):
    """labels: -1 ignored, 0 background, 1.. the classes."""
    cls, box, direction = outputs
    positive = labels > 0
    normalizer = positive.sum(1, keepdim=True).clamp(min=1).float()
    target = F.one_hot(labels.clamp(min=0), CLASSES + 1)[..., 1:].float()
    weight = (labels >= 0).float() / normalizer
    loss_cls = (focal(cls, target) * weight.unsqueeze(-1)).sum() / BATCH

    sin_pred = torch.sin(box[..., 6:]) * torch.cos(boxes[..., 6:])
    sin_true = torch.cos(box[..., 6:]) * torch.sin(boxes[..., 6:])
    box = torch.cat([box[..., :6], sin_pred], dim=-1)
    boxes = torch.cat([boxes[..., :6], sin_true], dim=-1)
    weight = positive.float() / normalizer
    loss_box = (F.smooth_l1_loss(box, boxes, beta=1 / 9, reduction="none") * weight.unsqueeze(-1)).sum() / BATCH

    ce = F.cross_entropy(direction.transpose(1, 2), directions, reduction="none")
    loss_dir = (ce * weight).sum() / BATCH
    return loss_cls + 2.0 * loss_box + 0.2 * loss_dir


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if ".bn" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    if name == "head.cls.bias":
        return np.full(shape, -np.log(9), np.float32)
    if len(shape) == 1:
        return (0.1 * value).astype(np.float32)
    fan = np.prod(shape[1:]) if "deconv" not in name else shape[0]
    return (value / np.sqrt(fan)).astype(np.float32)


def make_batch(step):
    """Points (sample, x, y, z, intensity), sorted in no way, and targets of the anchors."""
    rng = np.random.RandomState(40 + step)
    n = 60
    centre = rng.uniform(1, 7, (BATCH, 4, 2))
    sample = rng.randint(0, BATCH, n)
    xy = centre[sample, rng.randint(0, 4, n)] + rng.normal(0, 0.5, (n, 2))
    xy = np.clip(xy, 0.01, 7.99)
    points = np.concatenate([sample[:, None], xy, rng.normal(0, 0.5, (n, 1)), rng.rand(n, 1)], 1).astype(np.float32)
    labels = rng.choice([-1, 0, 1, 2], (BATCH, ANCHORS), p=[0.1, 0.7, 0.1, 0.1])
    labels[:, 5] = 1
    boxes = rng.normal(0, 0.4, (BATCH, ANCHORS, 7)).astype(np.float32)
    return points, labels, boxes, rng.randint(0, 2, (BATCH, ANCHORS))


def main():
    net = PointPillars()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    net.train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            points, labels, boxes, directions = (torch.from_numpy(a) for a in make_batch(step))
            loss = losses(net(points), labels, boxes, directions)
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
