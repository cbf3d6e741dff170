"""One-stage anchor-free detector (FCOS with an IoU branch) on random images: assignment, focal loss, GIoU, SGD with nesterov."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

NUM_CLASSES, WIDTH, SIZE = 3, 16, 32
STRIDES = (4, 8)
RANGES = ((-1, 10), (10, 1e8))


def conv_gn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(4, cout), nn.ReLU(inplace=True))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_gn(3, WIDTH, 2)
        self.c3 = conv_gn(WIDTH, WIDTH, 2)
        self.c4 = conv_gn(WIDTH, WIDTH, 2)
        self.lateral3 = nn.Conv2d(WIDTH, WIDTH, 1)
        self.lateral4 = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        c3 = self.c3(self.stem(x))
        c4 = self.c4(c3)
        p4 = self.lateral4(c4)
        p3 = self.lateral3(c3) + F.interpolate(p4, scale_factor=2, mode="nearest")
        return [p3, p4]


class Scale(nn.Module):
    def __init__(self, init=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([init]))

    def forward(self, x):
        return x * self.scale


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_tower = conv_gn(WIDTH, WIDTH)
        self.box_tower = conv_gn(WIDTH, WIDTH)
        self.cls_logits = nn.Conv2d(WIDTH, NUM_CLASSES, 3, padding=1)
        self.bbox_pred = nn.Conv2d(WIDTH, 4, 3, padding=1)
        self.iou_pred = nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.scales = nn.ModuleList(Scale() for _ in STRIDES)

    def forward(self, features):
        cls, box, iou = [], [], []
        for level, x in enumerate(features):
            c, b = self.cls_tower(x), self.box_tower(x)
            cls.append(flatten(self.cls_logits(c)))
            reg = F.relu(self.scales[level](self.bbox_pred(b)))
            box.append(flatten(reg) * STRIDES[level])
            iou.append(flatten(self.iou_pred(b)))
        return torch.cat(cls, 1), torch.cat(box, 1), torch.cat(iou, 1).squeeze(-1)


def flatten(x):
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, x.shape[1])


class FCOS(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = Head()

    def forward(self, x):
        return self.head(self.backbone(x))


def make_points():
    points, strides, ranges = [], [], []
    for stride, size_range in zip(STRIDES, RANGES):
        n = SIZE // stride
        shift = (torch.arange(n, dtype=torch.float32) + 0.5) * stride
        y, x = torch.meshgrid(shift, shift, indexing="ij")
        points.append(torch.stack([x.reshape(-1), y.reshape(-1)], 1))
        strides.append(torch.full((n * n,), float(stride)))
        ranges.append(torch.tensor(size_range).float().expand(n * n, 2))
    return torch.cat(points), torch.cat(strides), torch.cat(ranges)


@torch.no_grad()
def assign(points, ranges, boxes, classes):
    """One image: the class of each point (-1: background) and its distances to the sides of its box."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    x, y = points[:, 0:1], points[:, 1:2]
    ltrb = torch.stack([x - boxes[:, 0], y - boxes[:, 1], boxes[:, 2] - x, boxes[:, 3] - y], dim=2)
    inside = ltrb.min(dim=2)[0] > 0
    largest = ltrb.max(dim=2)[0]
    cares = (largest >= ranges[:, 0:1]) & (largest < ranges[:, 1:2])
    cost = area[None].repeat(len(points), 1)
    cost[~(inside & cares)] = float("inf")
    min_area, index = cost.min(dim=1)
    labels = classes[index].clone()
    labels[min_area == float("inf")] = -1
    return labels, ltrb[torch.arange(len(points)), index]


def giou(pred, target):
    """Of distances (l, t, r, b) from the same point; also the plain IoU."""
    pl, pt, pr, pb = pred.unbind(-1)
    tl, tt, tr, tb = target.unbind(-1)
    pred_area, target_area = (pl + pr) * (pt + pb), (tl + tr) * (tt + tb)
    inter = (torch.min(pl, tl) + torch.min(pr, tr)) * (torch.min(pt, tt) + torch.min(pb, tb))
    hull = (torch.max(pl, tl) + torch.max(pr, tr)) * (torch.max(pt, tt) + torch.max(pb, tb))
    union = pred_area + target_area - inter
    iou = inter / union
    return iou - (hull - union) / hull, iou


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(inputs)
    ce = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce * ((1 - p_t) ** gamma)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * loss).sum()


def compute_loss(outputs, labels, targets):
    cls, box, quality = outputs
    pos = labels >= 0
    num_pos = max(int(pos.sum()), 1)
    onehot = torch.zeros_like(cls)
    onehot[pos] = F.one_hot(labels[pos], NUM_CLASSES).float()
    cls_loss = sigmoid_focal_loss(cls, onehot) / num_pos
    g, iou = giou(box[pos], targets[pos])
    box_loss = (1 - g).sum() / num_pos
    iou_loss = F.binary_cross_entropy_with_logits(quality[pos], iou.detach(), reduction="sum") / num_pos
    return cls_loss + 2.0 * box_loss + 0.5 * iou_loss, (cls_loss, box_loss, iou_loss)


def make_batch(step):
    rng = np.random.RandomState(900 + step)
    images = rng.standard_normal((2, 3, SIZE, SIZE)).astype(np.float32)
    boxes = [np.array([[3.1, 2.3, 13.7, 11.2], [9.6, 6.4, 29.9, 30.5], [11.2, 8.7, 24.1, 22.6]]), np.array([[1.5, 12.2, 22.3, 31.0], [16.8, 3.9, 25.4, 10.1]])]
    boxes = [(b + rng.uniform(-0.5, 0.5, b.shape)).astype(np.float32) for b in boxes]
    classes = [np.array([0, 2, 1]), np.array([1, 0])]
    for image, bs, cs in zip(images, boxes, classes):
        for (x0, y0, x1, y1), c in zip(bs.astype(int), cs):
            image[c, max(y0, 0):y1, max(x0, 0):x1] += 1.0
    return images, boxes, classes


def init(model):
    for name, p in model.named_parameters():
        rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
        if p.ndim == 4:
            value = rng.standard_normal(p.shape) * np.sqrt(2.0 / np.prod(p.shape[1:]))
        else:
            value = rng.uniform(0.8, 1.2, p.shape) if name.endswith(".1.weight") or "scale" in name else rng.uniform(-0.1, 0.1, p.shape)
        if "bias" in name and "cls_logits" in name:
            value = np.full(p.shape, -np.log(0.9 / 0.1))
        if "bias" in name and "bbox_pred" in name:
            value = np.full(p.shape, 2.0)
        p.data.copy_(torch.from_numpy(value.astype(np.float32)))


def main():
    model = FCOS().train()
    init(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)
    points, strides, ranges = make_points()
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        images, boxes, classes = make_batch(step)
        dbg.start(model)
        assigned = [assign(points, ranges, torch.from_numpy(b), torch.from_numpy(c)) for b, c in zip(boxes, classes)]
        labels, targets = (torch.stack(x) for x in zip(*assigned))
        loss, parts = compute_loss(model(torch.from_numpy(images)), labels, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dbg.stop()
        dbg.step()
        norm = lambda ts: np.sqrt(sum(float(t.double().pow(2).sum()) for t in ts))
        gnorm, wnorm = norm([p.grad for p in model.parameters()]), norm([p.detach() for p in model.parameters()])
        print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f} cls {parts[0].item():.8f} box {parts[1].item():.8f} iou {parts[2].item():.8f} npos {int((labels >= 0).sum())}.0")


if __name__ == "__main__":
    main()
