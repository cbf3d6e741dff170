"""FCOS with an IoU branch, MindSpore: everything has a fixed shape (masks instead of indices), assignment for the whole batch."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

INF = 1e8


class ConvGN(nn.Cell):
    def __init__(self, in_c, out_c, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(in_c, out_c, 3, stride=stride, pad_mode="pad", padding=1)
        self.gn = nn.GroupNorm(4, out_c)
        self.relu = ops.ReLU()

    def construct(self, x):
        return self.relu(self.gn(self.conv(x)))


class FPN(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.stem, self.stage3, self.stage4 = ConvGN(3, width, 2), ConvGN(width, width, 2), ConvGN(width, width, 2)
        self.lat3 = nn.Conv2d(width, width, 1, has_bias=True)
        self.lat4 = nn.Conv2d(width, width, 1, has_bias=True)

    def construct(self, x):
        x3 = self.stage3(self.stem(x))
        x4 = self.stage4(x3)
        p4 = self.lat4(x4)
        up = ops.interpolate(p4, size=x3.shape[-2:], mode="nearest")
        return self.lat3(x3) + up, p4


class FCOSHead(nn.Cell):
    def __init__(self, width, num_classes, strides):
        super().__init__()
        self.strides = strides
        self.cls_conv, self.reg_conv = ConvGN(width, width), ConvGN(width, width)
        conv = dict(kernel_size=3, pad_mode="same", has_bias=True)  # stride 1: the same as padding 1
        self.cls_out = nn.Conv2d(width, num_classes, **conv)
        self.reg_out = nn.Conv2d(width, 4, **conv)
        self.iou_out = nn.Conv2d(width, 1, **conv)
        self.scale = Parameter(Tensor(np.ones(len(strides)), ms.float32), name="scale")

    def to_points(self, x):
        n, c = x.shape[:2]
        return x.reshape(n, c, -1).swapaxes(1, 2)

    def construct(self, features):
        outputs = []
        for i, stride in enumerate(self.strides):
            c, r = self.cls_conv(features[i]), self.reg_conv(features[i])
            distance = ops.relu(self.reg_out(r) * self.scale[i]) * stride
            outputs.append([self.to_points(o) for o in (self.cls_out(c), distance, self.iou_out(r))])
        cls, reg, iou = (ops.concat(level, axis=1) for level in zip(*outputs))
        return cls, reg, iou.squeeze(-1)


class Detector(nn.Cell):
    def __init__(self, width=16, num_classes=3, strides=(4, 8)):
        super().__init__()
        self.fpn = FPN(width)
        self.bbox_head = FCOSHead(width, num_classes, strides)

    def construct(self, x):
        return self.bbox_head(self.fpn(x))


class TargetAssigner:
    """gt boxes are padded to the same number in each image; a padded one has class -1."""

    def __init__(self, size=32, strides=(4, 8), ranges=((-1, 10), (10, INF))):
        points, limits = [], []
        for stride, limit in zip(strides, ranges):
            shift = (np.arange(size // stride) + 0.5) * stride
            xs, ys = np.meshgrid(shift, shift)
            points.append(np.stack([xs.ravel(), ys.ravel()], 1))
            limits.append(np.tile(np.float32(limit), (xs.size, 1)))
        self.points = Tensor(np.concatenate(points).astype(np.float32))
        self.limits = Tensor(np.concatenate(limits))

    def __call__(self, gt_boxes, gt_labels):
        px, py = self.points[:, 0].reshape(1, -1, 1), self.points[:, 1].reshape(1, -1, 1)
        x0, y0, x1, y1 = [c.expand_dims(1) for c in ops.unbind(gt_boxes, dim=-1)]
        ltrb = ops.stack((px - x0, py - y0, x1 - px, y1 - py), axis=-1)
        lo, hi = self.limits[:, 0].reshape(1, -1, 1), self.limits[:, 1].reshape(1, -1, 1)
        longest = ops.amax(ltrb, -1)
        ok = ops.logical_and(ops.amin(ltrb, -1) > 0, gt_labels.expand_dims(1) >= 0)
        ok = ops.logical_and(ok, ops.logical_and(longest >= lo, longest < hi))
        areas = (x1 - x0) * (y1 - y0)
        areas = ops.select(ok, ops.broadcast_to(areas, ok.shape), ops.full(ok.shape, INF, dtype=ms.float32))
        best, smallest = ops.argmin(areas, axis=-1), ops.amin(areas, -1)
        labels = ops.gather_elements(gt_labels, 1, best)
        labels = ops.where(smallest < INF, labels, -1)
        chosen = ops.tile(best.reshape(best.shape + (1, 1)), (1, 1, 1, 4))
        return labels, ops.gather_elements(ltrb, 2, chosen).squeeze(2)


class FCOSLoss(nn.Cell):
    def __init__(self, num_classes=3, alpha=0.25, gamma=2.0, box_weight=2.0, iou_weight=0.5):
        super().__init__()
        self.num_classes, self.alpha, self.gamma = num_classes, alpha, gamma
        self.box_weight, self.iou_weight = box_weight, iou_weight

    def bce(self, logits, target):
        one = ops.ones_like(logits)
        return ops.binary_cross_entropy_with_logits(logits, target, one, one, reduction="none")

    def focal(self, logits, target):
        prob = ops.sigmoid(logits)
        positive = target > 0
        modulator = ops.where(positive, 1 - prob, prob) ** self.gamma
        alpha = ops.where(positive, self.alpha, 1 - self.alpha)
        return (alpha * modulator * self.bce(logits, target)).sum()

    def ious(self, p, t):
        """p and t: distances to left, top, right, bottom."""
        smaller, larger = ops.minimum(p, t), ops.maximum(p, t)
        overlap = (smaller[..., 0] + smaller[..., 2]) * (smaller[..., 1] + smaller[..., 3])
        enclosing = (larger[..., 0] + larger[..., 2]) * (larger[..., 1] + larger[..., 3])
        area = lambda d: (d[..., 0] + d[..., 2]) * (d[..., 1] + d[..., 3])
        union = area(p) + area(t) - overlap
        iou = overlap / union
        return iou, iou - (enclosing - union) / enclosing

    def construct(self, cls, reg, quality, labels, targets):
        fg = (labels >= 0).astype(ms.float32)
        num_fg = ops.maximum(fg.sum(), Tensor(1.0))
        onehot = nn.OneHot(depth=self.num_classes)(ops.maximum(labels, 0)) * fg.expand_dims(-1)
        cls_loss = self.focal(cls, onehot) / num_fg
        keep = fg.expand_dims(-1) > 0
        targets = ops.where(keep, targets, ops.ones_like(targets))  # so that nothing is 0 / 0
        reg = ops.where(keep, reg, ops.ones_like(reg))
        iou, giou = self.ious(reg, targets)
        box_loss = ((1 - giou) * fg).sum() / num_fg
        iou_loss = (self.bce(quality, ops.stop_gradient(iou)) * fg).sum() / num_fg
        loss = cls_loss + self.box_weight * box_loss + self.iou_weight * iou_loss
        return loss, cls_loss, box_loss, iou_loss


def make_batch(step, size=32):
    rng = np.random.RandomState(900 + step)
    images = rng.standard_normal((2, 3, size, size)).astype(np.float32)
    boxes = [np.array([[3.1, 2.3, 13.7, 11.2], [9.6, 6.4, 29.9, 30.5], [11.2, 8.7, 24.1, 22.6]]), np.array([[1.5, 12.2, 22.3, 31.0], [16.8, 3.9, 25.4, 10.1]])]
    boxes = [(b + rng.uniform(-0.5, 0.5, b.shape)).astype(np.float32) for b in boxes]
    classes = [np.array([0, 2, 1]), np.array([1, 0])]
    for image, bs, cs in zip(images, boxes, classes):
        for (x0, y0, x1, y1), c in zip(bs.astype(int), cs):
            image[c, max(y0, 0):y1, max(x0, 0):x1] += 1.0
    gt_boxes, gt_labels = np.zeros((2, 4, 4), np.float32), np.full((2, 4), -1, np.int32)
    for i, (b, c) in enumerate(zip(boxes, classes)):
        gt_boxes[i, :len(b)], gt_labels[i, :len(c)] = b, c
    return Tensor(images), Tensor(gt_boxes), Tensor(gt_labels)


RENAME = [("fpn.", "backbone."), ("stage", "c"), ("lat3", "lateral3"), ("lat4", "lateral4"), ("bbox_head.", "head."), ("cls_conv", "cls_tower"), ("reg_conv", "box_tower"),
          ("cls_out", "cls_logits"), ("reg_out", "bbox_pred"), ("iou_out", "iou_pred"), (".conv.", ".0."), (".gn.gamma", ".1.weight"), (".gn.beta", ".1.bias")]


def init_value(name, shape):
    """By the name in the PyTorch model."""
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if len(shape) == 4:
        return rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
    if "bias" in name and "cls_logits" in name:
        return np.full(shape, -np.log(0.9 / 0.1))
    if "bias" in name and "bbox_pred" in name:
        return np.full(shape, 2.0)
    return rng.uniform(0.8, 1.2, shape) if name.endswith(".1.weight") or "scale" in name else rng.uniform(-0.1, 0.1, shape)


def init_weights(net):
    for p in net.trainable_params():
        name = p.name
        for ours, theirs in RENAME:
            name = name.replace(ours, theirs)
        if p.name.endswith("scale"):
            value = np.concatenate([init_value(f"head.scales.{i}.scale", (1,)) for i in range(p.shape[0])])
        else:
            value = init_value(name, p.shape)
        p.set_data(Tensor(value.astype(np.float32)))


net = Detector()
init_weights(net)
net.set_train(True)
assigner, criterion = TargetAssigner(), FCOSLoss()
optimizer = nn.SGD([{"params": net.trainable_params(), "weight_decay": 1e-4}], learning_rate=0.01, momentum=0.9, nesterov=True)


def forward(images, labels, targets):
    cls, reg, quality = net(images)
    return criterion(cls, reg, quality, labels, targets)


grad_fn = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
for step in range(int(os.environ.get("STEPS", 2))):
    images, gt_boxes, gt_labels = make_batch(step)
    dbg.start(net)
    labels, targets = assigner(gt_boxes, gt_labels)
    (loss, *parts), grads = grad_fn(images, labels, targets)
    optimizer(grads)
    dbg.stop()
    dbg.step()
    norm = lambda ts: np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in ts))
    cls_loss, box_loss, iou_loss = (float(x.asnumpy()) for x in parts)
    print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {norm(grads):.8f} wnorm {norm(net.trainable_params()):.8f} cls {cls_loss:.8f} box {box_loss:.8f} iou {iou_loss:.8f} npos {int((labels >= 0).sum().asnumpy())}.0")
