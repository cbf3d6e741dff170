"""The U-Net for organs in MindSpore. Group norm by hand, upsampling by pixel shuffle, everything of the loss in one function."""
import os, sys, zlib
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

CLASSES, WIDTH, SIZE, BATCH, IGNORE = 4, 6, 12, 2, 255


class GroupedNorm(nn.Cell):
    def __init__(self, channels, groups=2, eps=1e-5):
        super().__init__()
        self.scale = Parameter(ops.ones(channels, ms.float32), name="scale")
        self.shift = Parameter(ops.zeros(channels, ms.float32), name="shift")
        self.groups, self.eps = groups, eps

    def construct(self, x):
        n, c, h, w = x.shape
        g = x.reshape(n, self.groups, -1)
        mean = g.mean(axis=-1, keep_dims=True)
        var = (g * g).mean(axis=-1, keep_dims=True) - mean * mean
        g = (g - mean) / ops.sqrt(var + self.eps)
        return g.reshape(n, c, h, w) * self.scale.reshape(1, c, 1, 1) + self.shift.reshape(1, c, 1, 1)


def swish(x):
    return x / (1 + ops.exp(-x))


def conv(cin, cout, kernel, stride=1, dilation=1, bias=False):
    return nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=dilation * (kernel // 2), dilation=dilation, has_bias=bias)


class Residual(nn.Cell):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.first, self.first_norm = conv(cin, cout, 3, stride), GroupedNorm(cout)
        self.second, self.second_norm = conv(cout, cout, 3, dilation=2), GroupedNorm(cout)
        self.shortcut = conv(cin, cout, 1, stride) if cin != cout or stride != 1 else None

    def construct(self, x):
        y = self.second_norm(self.second(swish(self.first_norm(self.first(x)))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return swish(x + y)


class Gate(nn.Cell):
    """Both projections are one over the joined channels."""

    def __init__(self, channels):
        super().__init__()
        self.join = conv(2 * channels, channels // 2, 1, bias=True)
        self.score = conv(channels // 2, 1, 1, bias=True)

    def construct(self, skip, below):
        score = self.score(ops.relu(self.join(ops.concat((skip, below), axis=1))))
        return ops.sigmoid(score) * skip


class Shuffle(nn.Cell):
    """A transposed convolution of kernel 2 and stride 2 is a product and a shuffle."""

    def __init__(self, cin, cout):
        super().__init__()
        self.weight = Parameter(ops.zeros((cin, cout, 2, 2), ms.float32), name="weight")
        self.bias = Parameter(ops.zeros((cout,), ms.float32), name="bias")

    def construct(self, x):
        n, c, h, w = x.shape
        flat = x.transpose(0, 2, 3, 1).reshape(-1, c)
        out = ops.matmul(flat, self.weight.reshape(c, -1)).reshape(n, h, w, -1, 2, 2)
        out = out.transpose(0, 3, 1, 4, 2, 5).reshape(n, -1, 2 * h, 2 * w)
        return out + self.bias.reshape(1, -1, 1, 1)


class Segmenter(nn.Cell):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.down = nn.CellList([Residual(1, w), Residual(w, 2 * w, 2), Residual(2 * w, 2 * w, 2)])
        self.up_low = Shuffle(2 * w, 2 * w)
        self.up_high = nn.Conv2dTranspose(2 * w, w, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.gates = nn.CellList([Gate(2 * w), Gate(w)])
        self.merge = nn.CellList([Residual(4 * w, 2 * w), Residual(2 * w, w)])
        self.heads = nn.CellList([conv(2 * w, CLASSES, 1, bias=True), conv(w, CLASSES, 1, bias=True)])

    def construct(self, x):
        high = self.down[0](x)
        middle = self.down[1](high)
        up = self.up_low(self.down[2](middle))
        middle = self.merge[0](ops.concat((self.gates[0](middle, up), up), axis=1))
        up = self.up_high(middle)
        high = self.merge[1](ops.concat((self.gates[1](high, up), up), axis=1))
        coarse = self.heads[0](middle)
        coarse = ops.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        return self.heads[1](high), coarse


def loss_of(logits, labels, weight):
    """Focal and dice of one output."""
    logp = ops.log_softmax(logits.transpose(0, 2, 3, 1).reshape(-1, CLASSES), -1)
    p = ops.exp(logp)
    labels = labels.reshape(-1)
    valid = (labels != IGNORE).astype(ms.float32)
    chosen = (labels.expand_dims(-1) == ops.arange(CLASSES)).astype(ms.float32)
    picked = (logp * chosen).sum(axis=-1)
    focal = -ops.square(1 - ops.exp(picked)) * picked * (chosen * weight).sum(axis=-1)
    p = p * valid.expand_dims(-1)
    overlap = (p * chosen).sum(axis=0)
    size = ops.square(p).sum(axis=0) + chosen.sum(axis=0)
    dice = ((2 * overlap + 1) / (size + 1))[1:]
    return focal.sum() / valid.sum() + (1 - dice).mean()


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


def load(net):
    w, c = {}, WIDTH

    def block(new, old, cin, cout, has_skip=True):
        for a, b, k in (("first", "1", cin), ("second", "2", cout)):
            w[f"{new}.{a}.weight"] = initial(f"{old}.conv{b}.weight", (cout, k, 3, 3))
            w[f"{new}.{a}_norm.scale"], w[f"{new}.{a}_norm.shift"] = initial(f"{old}.norm{b}.weight", (cout,)), initial(f"{old}.norm{b}.bias", (cout,))
        if has_skip:
            w[new + ".shortcut.weight"] = initial(old + ".skip.weight", (cout, cin, 1, 1))

    block("down.0", "enc1", 1, c), block("down.1", "enc2", c, 2 * c), block("down.2", "enc3", 2 * c, 2 * c)
    block("merge.0", "dec2", 4 * c, 2 * c), block("merge.1", "dec1", 2 * c, c)
    for i, (old, k) in enumerate((("gate2", 2 * c), ("gate1", c))):
        w[f"gates.{i}.join.weight"] = np.concatenate([initial(f"{old}.{part}.weight", (k // 2, k, 1, 1)) for part in ("theta", "phi")], axis=1)
        w[f"gates.{i}.join.bias"] = initial(old + ".theta.bias", (k // 2,))
        w[f"gates.{i}.score.weight"], w[f"gates.{i}.score.bias"] = initial(old + ".psi.weight", (1, k // 2, 1, 1)), initial(old + ".psi.bias", (1,))
    w["up_low.weight"], w["up_low.bias"] = initial("up2.weight", (2 * c, 2 * c, 2, 2)), initial("up2.bias", (2 * c,))
    w["up_high.weight"], w["up_high.bias"] = initial("up1.weight", (2 * c, c, 4, 4)), initial("up1.bias", (c,))
    for i, (old, k) in enumerate((("deep_head", 2 * c), ("head", c))):
        w[f"heads.{i}.weight"], w[f"heads.{i}.bias"] = initial(old + ".weight", (CLASSES, k, 1, 1)), initial(old + ".bias", (CLASSES,))
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(w[name]))


def make_batch(step):
    rng = np.random.RandomState(70 + step)
    image = rng.standard_normal((BATCH, 1, SIZE, SIZE)).astype(np.float32)
    labels = rng.randint(0, CLASSES, (BATCH, SIZE // 3, SIZE // 3)).repeat(3, 1).repeat(3, 2)
    labels[:, :, -1] = IGNORE
    return image, labels.astype(np.int32)


def main():
    net = Segmenter()
    load(net)
    params = net.trainable_params()
    groups = [{"params": [p for p in params if p.ndim > 1], "weight_decay": 0.01}, {"params": [p for p in params if p.ndim == 1]}]
    optimizer = nn.SGD(groups, learning_rate=0.02, momentum=0.9, nesterov=True)
    weight = Tensor([0.5, 1.0, 1.5, 2.0], ms.float32)

    def forward(image, labels):
        fine, coarse = net(image)
        return loss_of(fine, labels, weight) + 0.4 * loss_of(coarse, labels, weight)

    step_fn = ms.value_and_grad(forward, None, optimizer.parameters)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            image, labels = make_batch(step)
            loss, grads = step_fn(Tensor(image), Tensor(labels))
            optimizer(grads)
            run.step()
            print(f"step {step} loss {float(loss.asnumpy()):.8f} w {sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params):.8f}")


if __name__ == "__main__":
    main()
