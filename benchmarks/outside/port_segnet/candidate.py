"""The U-Net in MindSpore. Pointwise convolutions are Dense layers over channels-last data."""
import os
import sys
import zlib

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Tensor

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class ConvBnRelu(nn.Cell):
    def __init__(self, in_channels, out_channels, kernel_size=3, stride=1, group=1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, pad_mode="pad", padding=kernel_size // 2, group=group, has_bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-5, momentum=0.9)
        self.act = nn.ReLU()

    def construct(self, x):
        return self.act(self.bn(self.conv(x)))


class Pointwise(nn.Cell):
    """1x1 convolution as a matrix product."""

    def __init__(self, in_channels, out_channels, bias=False):
        super().__init__()
        self.fc = nn.Dense(in_channels, out_channels, has_bias=bias)
        self.to_last = (0, 2, 3, 1)
        self.to_first = (0, 3, 1, 2)

    def construct(self, x):
        x = self.fc(ops.transpose(x, self.to_last))
        return ops.transpose(x, self.to_first)


class DoubleConv(nn.Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = ConvBnRelu(in_channels, out_channels)
        self.dw = ConvBnRelu(out_channels, out_channels, group=out_channels)
        self.pw = Pointwise(out_channels, out_channels)
        self.pw_bn = nn.BatchNorm2d(out_channels, momentum=0.9)

    def construct(self, x):
        x = self.conv1(x)
        y = self.pw_bn(self.pw(self.dw(x)))
        return x + ops.relu(y)


class UpBlock(nn.Cell):
    def __init__(self, in_channels, skip_channels, out_channels):
        super().__init__()
        self.conv = DoubleConv(in_channels + skip_channels, out_channels)
        self.concat = ops.Concat(axis=1)

    def construct(self, x, skip):
        x = ops.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)
        return self.conv(self.concat((skip, x)))


class UNet(nn.Cell):
    def __init__(self, width=8):
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.down1 = DoubleConv(width, 2 * width)
        self.down2 = DoubleConv(2 * width, 2 * width)
        self.up1 = UpBlock(2 * width, 2 * width, width)
        self.up2 = UpBlock(width, width, width)
        self.head = Pointwise(width, 1, bias=True)

    def construct(self, x):
        x1 = self.inc(x)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.head(x)


class FocalDiceLoss(nn.LossBase):
    def __init__(self, alpha=0.25, gamma=2.0, smooth=1.0, dice_weight=0.5):
        super().__init__()
        self.alpha, self.gamma, self.smooth, self.dice_weight = alpha, gamma, smooth, dice_weight
        self.sigmoid = nn.Sigmoid()
        self.reduce_sum = ops.ReduceSum()

    def construct(self, logits, label):
        prob = self.sigmoid(logits)
        bce = ops.relu(logits) - logits * label + ops.log(1 + ops.exp(-ops.abs(logits)))
        p_t = ops.select(label > 0.5, prob, 1 - prob)
        alpha_t = ops.select(label > 0.5, ops.full_like(prob, self.alpha), ops.full_like(prob, 1 - self.alpha))
        weight = ops.stop_gradient(alpha_t * ops.pow(1 - p_t, self.gamma))
        focal = ops.mean(weight * bce)

        n = logits.shape[0]
        prob, label = prob.view(n, -1), label.view(n, -1)
        intersection = self.reduce_sum(prob * label, 1)
        union = self.reduce_sum(prob, 1) + self.reduce_sum(label, 1)
        dice = 1 - ((2 * intersection + self.smooth) / (union + self.smooth)).mean()
        return focal + self.dice_weight * dice


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if len(shape) == 1:
        return (rng.uniform(0.7, 1.3, shape) if name.endswith("weight") else rng.uniform(-0.2, 0.2, shape)).astype(np.float32)
    return (rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))).astype(np.float32)


def reference_name(name):
    """Names of this file to those of the PyTorch network."""
    for a, b in [("conv1.conv.", "conv1.0."), ("conv1.bn.", "conv1.1."), ("dw.conv.", "dw.0."), ("dw.bn.", "dw.1."), ("pw.fc.", "pw.0."), ("pw_bn.", "pw.1."),
                 ("gamma", "weight"), ("beta", "bias"), ("head.fc.", "head.")]:
        name = name.replace(a, b)
    if name.startswith("down"):
        name = name.replace(".", ".1.", 1)
    return name


def make_batch(step):
    rng = np.random.RandomState(100 + step)
    image = rng.standard_normal((4, 3, 14, 14)).astype(np.float32)
    yy, xx = np.mgrid[:14, :14]
    mask = np.stack([((yy - cy) ** 2 + (xx - cx) ** 2 < r * r) for cy, cx, r in zip((4, 7, 9, 5), (6, 3, 8, 10), (3, 2, 4, 2.5))])
    image += 0.8 * mask[:, None]
    return image, mask[:, None].astype(np.float32)


net = UNet()
for p in net.trainable_params():
    shape = p.shape + (1, 1) if ".fc.weight" in p.name else p.shape  # a Dense is a 1x1 convolution here
    p.set_data(Tensor(initial(reference_name(p.name), shape).reshape(p.shape)))
criterion = FocalDiceLoss()
# in a group, so that gamma and beta are decayed, too, as PyTorch does it
groups = [{"params": net.trainable_params(), "weight_decay": 1e-3}]
optimizer = nn.SGD(groups, learning_rate=0.05, momentum=0.9, nesterov=True)
net.set_train()


def forward_fn(image, mask):
    return criterion(net(image), mask)


train = ms.value_and_grad(forward_fn, None, optimizer.parameters)

with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
    for step in range(int(os.environ.get("STEPS", 2))):
        image, mask = map(Tensor, make_batch(step))
        loss, grads = train(image, mask)
        optimizer(grads)
        net.set_train(False)
        pred = (ops.sigmoid(net(image)) > 0.5).astype(ms.float32)
        iou = ((pred * mask).sum() + 1e-6) / (ops.clamp(pred + mask, max=1.0).sum() + 1e-6)
        net.set_train(True)
        run.step()
        gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
        wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in net.trainable_params()))
        running = sum(np.abs(p.asnumpy().astype(np.float64)).sum() for n, p in net.parameters_and_names() if "moving" in n)
        print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f} running {running:.6f} iou {float(iou.asnumpy()):.6f}")
