"""Swin in MindSpore on token sequences: windows, shift and merging are one gather each, with indices made by numpy."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

IMAGE, PATCH, DIM, WINDOW, CLASSES, BATCH = 16, 2, 8, 4, 5, 2
DEPTHS, HEADS = (2, 1), (2, 4)
AREA = WINDOW * WINDOW


def window_order(size, shift):
    """The token at each place of the windows, after the image was rolled by -shift: (windows * area,)."""
    grid = np.roll(np.arange(size * size).reshape(size, size), (-shift, -shift), (0, 1))
    rows = [grid[r:r + WINDOW, c:c + WINDOW].ravel() for r in range(0, size, WINDOW) for c in range(0, size, WINDOW)]
    return np.concatenate(rows)


def same_region(size, shift):
    """(windows, area, area): True where two tokens of a window are neighbours in the image, not only by the wrap around."""
    tokens = window_order(size, shift).reshape(-1, AREA)
    row, column = tokens // size, tokens % size
    # a wrapped token is of the first rows or columns, in a window that also holds the last ones
    below = (row < shift) & (row.max(axis=1, keepdims=True) == size - 1)
    beside = (column < shift) & (column.max(axis=1, keepdims=True) == size - 1)
    wrapped = 2 * below + beside
    return wrapped[:, :, None] == wrapped[:, None, :]


def relative_rows():
    """Row of the bias table for each pair of places in a window."""
    span = 2 * WINDOW - 1
    row, column = np.divmod(np.arange(AREA), WINDOW)
    dr = row[:, None] - row[None] + WINDOW - 1
    dc = column[:, None] - column[None] + WINDOW - 1
    return (dr * span + dc).astype(np.int32)


class ShiftedAttention(nn.Cell):
    def __init__(self, dim, heads, size, shift):
        super().__init__()
        self.heads, self.windows = heads, size * size // AREA
        order = window_order(size, shift)
        self.order, self.back = Tensor(order, ms.int32), Tensor(np.argsort(order), ms.int32)
        self.bias = Parameter(Tensor(np.zeros((heads, (2 * WINDOW - 1) ** 2)), ms.float32), name="bias")
        self.rows = Tensor(relative_rows().ravel())
        self.blocked = Tensor(~same_region(size, shift)[:, None]) if shift else None
        self.query, self.key, self.value = nn.Dense(dim, dim), nn.Dense(dim, dim), nn.Dense(dim, dim)
        self.out = nn.Dense(dim, dim)
        self.scale = (dim // heads) ** 0.5

    def heads_of(self, x):
        return x.reshape(-1, self.windows, AREA, self.heads, x.shape[-1] // self.heads).transpose(0, 1, 3, 2, 4)

    def construct(self, x):
        b, n, c = x.shape
        x = ops.gather(x, self.order, 1)
        q, k, v = self.heads_of(self.query(x)), self.heads_of(self.key(x)), self.heads_of(self.value(x))
        score = ops.matmul(q, k.swapaxes(-1, -2)) / self.scale
        score = score + ops.gather(self.bias, self.rows, 1).reshape(self.heads, AREA, AREA)
        if self.blocked is not None:
            score = ops.masked_fill(score, self.blocked, -1e4)
        y = ops.matmul(ops.softmax(score, axis=-1), v)
        y = self.out(y.transpose(0, 1, 3, 2, 4).reshape(b, n, c))
        return ops.gather(y, self.back, 1)


class Layer(nn.Cell):
    def __init__(self, dim, heads, size, shift):
        super().__init__()
        self.ln = nn.CellList([nn.LayerNorm((dim,), epsilon=1e-5) for _ in range(2)])
        self.attention = ShiftedAttention(dim, heads, size, shift)
        self.fc_in, self.fc_out = nn.Dense(dim, 2 * dim), nn.Dense(2 * dim, dim)
        self.act = nn.GELU(approximate=False)
        self.scales = Parameter(Tensor(np.zeros((2, dim)), ms.float32), name="scales")

    def construct(self, x):
        x = x + self.attention(self.ln[0](x)) * self.scales[0]
        return x + self.fc_out(self.act(self.fc_in(self.ln[1](x)))) * self.scales[1]


class Downsample(nn.Cell):
    """Four neighbours side by side in the channels; the columns of the weight are in the order (row, column)."""

    def __init__(self, dim, size):
        super().__init__()
        self.size = size
        self.ln = nn.LayerNorm((4 * dim,), epsilon=1e-5)
        self.fc = nn.Dense(4 * dim, 2 * dim, has_bias=False)

    def construct(self, x):
        b, n, c = x.shape
        half = self.size // 2
        x = x.reshape(b, half, 2, half, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, n // 4, 4 * c)
        return self.fc(self.ln(x))


class SwinNet(nn.Cell):
    def __init__(self):
        super().__init__()
        size = IMAGE // PATCH
        self.embed = nn.Dense(3 * PATCH * PATCH, DIM)
        self.embed_ln = nn.LayerNorm((DIM,), epsilon=1e-5)
        first = [Layer(DIM, HEADS[0], size, WINDOW // 2 if i % 2 else 0) for i in range(DEPTHS[0])]
        second = [Layer(2 * DIM, HEADS[1], size // 2, 0) for i in range(DEPTHS[1])]
        self.layers = nn.SequentialCell(first + [Downsample(DIM, size)] + second)
        self.final_ln = nn.LayerNorm((2 * DIM,), epsilon=1e-5)
        self.classifier = nn.Dense(2 * DIM, CLASSES)

    def construct(self, image):
        b, c, h, w = image.shape
        x = image.reshape(b, c, h // PATCH, PATCH, w // PATCH, PATCH).transpose(0, 2, 4, 1, 3, 5)
        x = self.embed_ln(self.embed(x.reshape(b, -1, c * PATCH * PATCH)))
        x = self.final_ln(self.layers(x))
        return self.classifier(ops.mean(x, 1))


class SmoothedLoss(nn.Cell):
    def __init__(self, smoothing=0.1):
        super().__init__()
        self.on = 1 - smoothing + smoothing / CLASSES
        self.off = smoothing / CLASSES
        self.soft = nn.LogSoftmax(axis=1)

    def construct(self, logits, label):
        target = ops.one_hot(label, CLASSES, Tensor(self.on, ms.float32), Tensor(self.off, ms.float32))
        return -(target * self.soft(logits)).sum(axis=1).mean()


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    if "gamma" in name:
        return (0.5 + 0.1 * value).astype(np.float32)
    if "bias_table" in name:
        return (0.5 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.1 * value).astype(np.float32)
    return (value / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(60 + step)
    image = rng.normal(0, 1, (BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
    return image, rng.randint(0, CLASSES, BATCH)


def layer_weights(new, old, dim, heads):
    qkv, bias = initial(old + ".attn.qkv.weight", (3 * dim, dim)), initial(old + ".attn.qkv.bias", (3 * dim,))
    w = {"scales": np.stack([initial(f"{old}.gamma{j}", (dim,)) for j in (1, 2)])}
    for j, part in enumerate(("query", "key", "value")):
        w[f"attention.{part}.weight"], w[f"attention.{part}.bias"] = qkv[j * dim:(j + 1) * dim], bias[j * dim:(j + 1) * dim]
    w["attention.bias"] = initial(old + ".attn.relative_bias_table", ((2 * WINDOW - 1) ** 2, heads)).T
    for a, b, shape in (("attention.out", "attn.proj", (dim, dim)), ("fc_in", "mlp.0", (2 * dim, dim)), ("fc_out", "mlp.2", (dim, 2 * dim))):
        w[a + ".weight"], w[a + ".bias"] = initial(f"{old}.{b}.weight", shape), initial(f"{old}.{b}.bias", shape[:1])
    for j in (0, 1):
        w[f"ln.{j}.gamma"], w[f"ln.{j}.beta"] = initial(f"{old}.norm{j + 1}.weight", (dim,)), initial(f"{old}.norm{j + 1}.bias", (dim,))
    return {f"{new}.{k}": v for k, v in w.items()}


def merge_order(columns):
    """The reference concatenates (0,0), (1,0), (0,1), (1,1)."""
    parts = np.split(columns, 4, axis=-1)
    return np.concatenate([parts[0], parts[2], parts[1], parts[3]], axis=-1)


def load(net):
    w = {"embed.weight": initial("patch_embed.weight", (DIM, 3, PATCH, PATCH)).reshape(DIM, -1), "embed.bias": initial("patch_embed.bias", (DIM,))}
    for new, old, dim in (("embed_ln", "patch_norm", DIM), ("layers.2.ln", "merge.norm", 4 * DIM), ("final_ln", "norm", 2 * DIM)):
        w[new + ".gamma"], w[new + ".beta"] = initial(old + ".weight", (dim,)), initial(old + ".bias", (dim,))
    for kind in ("gamma", "beta"):
        w["layers.2.ln." + kind] = merge_order(w["layers.2.ln." + kind])
    w["layers.2.fc.weight"] = merge_order(initial("merge.reduction.weight", (2 * DIM, 4 * DIM)))
    w.update(layer_weights("layers.0", "stage1.0", DIM, HEADS[0]))
    w.update(layer_weights("layers.1", "stage1.1", DIM, HEADS[0]))
    w.update(layer_weights("layers.3", "stage2.0", 2 * DIM, HEADS[1]))
    w["classifier.weight"], w["classifier.bias"] = initial("head.weight", (CLASSES, 2 * DIM)), initial("head.bias", (CLASSES,))
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(np.ascontiguousarray(w.pop(name))))
    assert not w


def main():
    net, criterion = SwinNet(), SmoothedLoss()
    load(net)
    params = net.trainable_params()
    decayed = [p for p in params if p.name.endswith("weight")]
    plain = [p for p in params if not p.name.endswith("weight")]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}, {"order_params": params}]
    opt = nn.SGD(groups, learning_rate=0.05, momentum=0.9, dampening=0.0, nesterov=True)
    grad_fn = ms.value_and_grad(lambda image, label: criterion(net(image), label), None, params)
    net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            image, label = make_batch(step)
            loss, grads = grad_fn(Tensor(image), Tensor(label, ms.int32))
            opt(grads)
            run.step()
            gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
            wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
