"""PointPillars in MindSpore: pillars are grouped by numpy in the input pipeline (static indices), one convolution for all heads."""
import math
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

GRID, VOXEL, BATCH, CLASSES, PER_CELL = 8, 1.0, 2, 2, 2
ANCHORS = GRID * GRID // 4 * PER_CELL
FEATURES = 12
HEAD = CLASSES + 7 + 2


def group_points(points):
    """numpy: decorated points (n, 9), slots (pillars, most) with -1 where empty, coordinates (pillars, 3) as sample, row, column."""
    cell = np.floor(points[:, 1:3] / VOXEL).astype(np.int64)
    key = np.stack([points[:, 0].astype(np.int64), cell[:, 1], cell[:, 0]], axis=1)
    coords, inverse, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    slots = np.full((len(coords), count.max()), -1, np.int32)
    fill = np.zeros(len(coords), np.int64)
    for j, pillar in enumerate(inverse):
        slots[pillar, fill[pillar]] = j
        fill[pillar] += 1
    mean = np.stack([np.bincount(inverse, points[:, c]) / count for c in (1, 2, 3)], axis=1)
    offset = points[:, 1:4] - mean[inverse]
    centre = points[:, 1:3] - (cell + 0.5) * VOXEL
    decorated = np.concatenate([points[:, 1:], offset, centre], axis=1).astype(np.float32)
    return decorated, slots, coords.astype(np.int32)


class PillarVFE(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Dense(9, channels, has_bias=False)
        self.norm = nn.BatchNorm1d(channels, eps=1e-3, momentum=0.99)

    def construct(self, decorated, slots):
        x = ops.relu(self.norm(self.fc(decorated)))
        pillars, most = slots.shape
        grouped = ops.gather(x, ops.maximum(slots, 0).reshape(-1), 0).reshape(pillars, most, -1)
        empty = (slots < 0).expand_dims(-1)
        grouped = ops.masked_fill(grouped, empty, -1e4)
        return ops.ReduceMax()(grouped, 1)


class ToCanvas(nn.Cell):
    def construct(self, features, coords):
        c = features.shape[1]
        canvas = ops.scatter_nd(coords, features, (BATCH, GRID, GRID, c))
        return canvas.transpose(0, 3, 1, 2)


def conv_bn(cin, cout, stride):
    return [
        nn.Conv2d(cin, cout, 3, stride, pad_mode="pad", padding=1, has_bias=False),
        nn.BatchNorm2d(cout, eps=1e-3, momentum=0.99),
        nn.ReLU(),
    ]


class Neck(nn.Cell):
    """Upsampling to the resolution of the first stage; factor 1 is a plain 1x1 convolution."""

    def __init__(self):
        super().__init__()
        self.same = nn.Conv2d(12, 8, 1, has_bias=False)
        self.up = nn.Conv2dTranspose(16, 8, 2, stride=2, pad_mode="valid", has_bias=False)
        self.same_bn = nn.BatchNorm2d(8, eps=1e-3, momentum=0.99)
        self.up_bn = nn.BatchNorm2d(8, eps=1e-3, momentum=0.99)

    def construct(self, low, high):
        return ops.relu(ops.concat((self.same_bn(self.same(low)), self.up_bn(self.up(high))), axis=1))


class Detector(nn.Cell):
    def __init__(self):
        super().__init__()
        self.vfe = PillarVFE(FEATURES)
        self.canvas = ToCanvas()
        self.down1 = nn.SequentialCell(conv_bn(FEATURES, 12, 2) + conv_bn(12, 12, 1))
        self.down2 = nn.SequentialCell(conv_bn(12, 16, 2) + conv_bn(16, 16, 1))
        self.neck = Neck()
        self.head = nn.Conv2d(16, PER_CELL * HEAD, 1, has_bias=True)

    def construct(self, decorated, slots, coords):
        x = self.canvas(self.vfe(decorated, slots), coords)
        low = self.down1(x)
        y = self.head(self.neck(low, self.down2(low)))
        # channels: (anchor of the cell, class | box | direction)
        y = y.reshape(BATCH, PER_CELL, HEAD, -1).transpose(0, 3, 1, 2)
        return y.reshape(BATCH, ANCHORS, HEAD)


class DetectionLoss(nn.Cell):
    def __init__(self, alpha=0.25, gamma=2.0, sigma=3.0, weights=(1.0, 2.0, 0.2)):
        super().__init__()
        self.alpha, self.gamma, self.sigma2, self.weights = alpha, gamma, sigma**2, weights

    def focal(self, logits, labels):
        classes = ops.arange(1, CLASSES + 1).astype(labels.dtype)
        hit = labels.expand_dims(-1) == classes
        # the probability of the other answer, and its cost
        signed = ops.where(hit, logits, -logits)
        wrong = ops.sigmoid(-signed)
        alpha = ops.where(hit, Tensor(self.alpha, ms.float32), Tensor(1 - self.alpha, ms.float32))
        return (alpha * ops.pow(wrong, self.gamma) * ops.softplus(-signed)).sum(-1)

    def smooth_l1(self, diff):
        size = ops.abs(diff)
        return ops.where(size < 1 / self.sigma2, 0.5 * self.sigma2 * ops.square(diff), size - 0.5 / self.sigma2)

    def construct(self, output, labels, boxes, directions):
        cls, box, direction = output[..., :CLASSES], output[..., CLASSES:CLASSES + 7], output[..., CLASSES + 7:]
        positive = (labels > 0).astype(ms.float32)
        normalizer = ops.maximum(positive.sum(1, keepdims=True), 1.0)
        cared = (labels != -1).astype(ms.float32)
        loss_cls = (self.focal(cls, labels) * cared / normalizer).sum()

        diff = box - boxes
        # sin(a - b), the turn by pi is left to the direction classifier
        diff = ops.concat((diff[..., :6], ops.sin(diff[..., 6:])), axis=-1)
        loss_box = (self.smooth_l1(diff).sum(-1) * positive / normalizer).sum()

        logp = ops.log_softmax(direction, -1)
        picked = ops.where(directions == 1, logp[..., 1], logp[..., 0])
        loss_dir = (-picked * positive / normalizer).sum()
        w = self.weights
        return (w[0] * loss_cls + w[1] * loss_box + w[2] * loss_dir) / BATCH


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


def head_rows(suffix, shape):
    """One convolution: for each anchor the rows of its classes, its box, its direction."""
    parts = [initial(f"head.{n}.{suffix}", (PER_CELL * k,) + shape).reshape((PER_CELL, k) + shape) for n, k in (("cls", CLASSES), ("box", 7), ("dir", 2))]
    return np.concatenate(parts, axis=1).reshape((PER_CELL * HEAD,) + shape)


def load(net):
    w = {
        "vfe.fc.weight": initial("encoder.linear.weight", (FEATURES, 9)),
        "neck.same.weight": initial("backbone.up1.deconv.weight", (12, 8, 1, 1)).transpose(1, 0, 2, 3),
        "neck.up.weight": initial("backbone.up2.deconv.weight", (16, 8, 2, 2)),
        "head.weight": head_rows("weight", (16, 1, 1)),
        "head.bias": head_rows("bias", ()),
    }
    norms = {"vfe.norm": ("encoder.bn", FEATURES), "neck.same_bn": ("backbone.up1.bn", 8), "neck.up_bn": ("backbone.up2.bn", 8)}
    for stage, (cin, cout) in enumerate(((FEATURES, 12), (12, 16)), 1):
        for j in (0, 1):
            old = f"backbone.stage{stage}.{j}"
            w[f"down{stage}.{3 * j}.weight"] = initial(old + ".conv.weight", (cout, cout if j else cin, 3, 3))
            norms[f"down{stage}.{3 * j + 1}"] = (old + ".bn", cout)
    for new, (old, size) in norms.items():
        w[new + ".gamma"], w[new + ".beta"] = initial(old + ".weight", (size,)), initial(old + ".bias", (size,))
    for p in net.trainable_params():
        p.set_data(Tensor(np.ascontiguousarray(w.pop(p.name))))
    assert not w


def main():
    net, criterion = Detector(), DetectionLoss()
    load(net)
    params = net.trainable_params()
    # a group of its own: the optimizer leaves gamma and beta out of a decay given as argument
    opt = nn.Momentum([{"params": params, "weight_decay": 1e-3}], learning_rate=0.02, momentum=0.9)

    def forward(decorated, slots, coords, labels, boxes, directions):
        return criterion(net(decorated, slots, coords), labels, boxes, directions)

    grad_fn = ms.value_and_grad(forward, None, params)
    net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            points, labels, boxes, directions = make_batch(step)
            inputs = group_points(points) + (labels.astype(np.int32), boxes, directions.astype(np.int32))
            loss, grads = grad_fn(*(Tensor(a) for a in inputs))
            opt(grads)
            run.step()
            gnorm = math.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
            wnorm = math.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
