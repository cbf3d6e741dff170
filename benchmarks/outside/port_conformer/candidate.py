"""Conformer-CTC in MindSpore: everything channels last, distances gathered instead of shifted, the scale of the rate in a schedule."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

MELS, FRAMES, DIM, HEADS, KERNEL, LAYERS, VOCAB, BATCH = 6, 24, 16, 2, 5, 1, 7, 3
SIZE = DIM // HEADS


def zeros(name, *shape):
    return Parameter(Tensor(np.zeros(shape), ms.float32), name=name)


def layer_norm():
    return nn.LayerNorm((DIM,), epsilon=1e-5)


class Frontend(nn.Cell):
    """Convolution over windows of three frames, every second one, as one dense layer."""

    def __init__(self):
        super().__init__()
        self.window = nn.Dense(3 * MELS, DIM, activation="relu")
        self.proj = nn.Dense(DIM, DIM)

    def construct(self, audio):
        b, t, m = audio.shape
        padded = ops.pad(audio, (0, 0, 1, 1))
        parts = [padded[:, j:j + t:2] for j in range(3)]
        return self.proj(self.window(ops.concat(parts, axis=-1))) * DIM ** 0.5


def sinusoids(t):
    """Row r holds the distance r - (t - 1)."""
    distance = np.arange(-(t - 1), t)[:, None]
    angle = distance / np.power(10000.0, np.arange(0, DIM, 2) / DIM)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(2 * t - 1, DIM).astype(np.float32)


class MultiHeadRelative(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ln = layer_norm()
        self.qk = nn.Dense(DIM, 2 * DIM, has_bias=False)
        self.v = nn.Dense(DIM, DIM)
        self.pos = nn.Dense(DIM, DIM, has_bias=False)
        self.uv = zeros("uv", 2, 1, HEADS, 1, SIZE)
        self.out = nn.Dense(DIM, DIM)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, SIZE).transpose(0, 2, 1, 3)

    def construct(self, x, table, rows, padding):
        b, t, _ = x.shape
        x = self.ln(x)
        q, k = ops.split(self.qk(x), DIM, axis=-1)
        q, k, v = self.split(q) * SIZE ** -0.5, self.split(k), self.split(self.v(x))
        u, w = self.uv[0] * SIZE ** -0.5, self.uv[1] * SIZE ** -0.5
        r = self.split(self.pos(table).expand_dims(0))
        by_distance = ops.matmul(q + w, r.swapaxes(2, 3))
        by_distance = ops.gather_elements(by_distance, 3, ops.broadcast_to(rows, (b, HEADS, t, t)))
        score = ops.matmul(q + u, k.swapaxes(2, 3)) + by_distance
        score = score + padding * -1e9
        y = ops.matmul(ops.softmax(score), v)
        return self.out(y.transpose(0, 2, 1, 3).reshape(b, t, DIM))


class Convolution(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ln = layer_norm()
        self.value, self.gate = nn.Dense(DIM, DIM), nn.Dense(DIM, DIM)
        self.depthwise = nn.Conv2d(DIM, DIM, (1, KERNEL), pad_mode="same", group=DIM, has_bias=False)
        self.bn = nn.BatchNorm2d(DIM, eps=1e-5, momentum=0.9)
        self.last = nn.Dense(DIM, DIM)

    def construct(self, x, keep):
        x = self.ln(x)
        x = self.value(x) * ops.sigmoid(self.gate(x)) * keep
        x = x.swapaxes(1, 2).expand_dims(2)
        x = self.bn(self.depthwise(x)).squeeze(2).swapaxes(1, 2)
        return self.last(x * ops.sigmoid(x))


class Macaron(nn.SequentialCell):
    """Half a feed-forward."""

    def __init__(self):
        super().__init__(layer_norm(), nn.Dense(DIM, 2 * DIM), nn.SiLU(), nn.Dense(2 * DIM, DIM))

    def construct(self, x):
        return x + super().construct(x) / 2


class Encoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.front = Frontend()
        self.before = nn.CellList([Macaron() for _ in range(LAYERS)])
        self.attention = nn.CellList([MultiHeadRelative() for _ in range(LAYERS)])
        self.convolution = nn.CellList([Convolution() for _ in range(LAYERS)])
        self.after = nn.CellList([Macaron() for _ in range(LAYERS)])
        self.final = nn.CellList([layer_norm() for _ in range(LAYERS)])
        self.to_letters = nn.Dense(DIM, VOCAB)

    def construct(self, audio, frames):
        x = self.front(audio)
        t = x.shape[1]
        length = ops.floor_divide(frames + 1, 2)
        keep = (ops.arange(t).expand_dims(0) < length.expand_dims(1)).astype(ms.float32)
        padding = (1 - keep).reshape(-1, 1, 1, t)
        at = np.arange(t)
        rows = Tensor(at[:, None] - at[None] + t - 1, ms.int32)  # query minus key
        table = Tensor(sinusoids(t))
        for j in range(LAYERS):
            x = self.before[j](x)
            x = x + self.attention[j](x, table, rows, padding)
            x = x + self.convolution[j](x, keep.expand_dims(-1))
            x = self.final[j](self.after[j](x))
        return self.to_letters(x), length


class CTC(nn.Cell):
    """The forward recursion of CTC in log space, over the text with blanks in between."""

    LOW = -1e5

    def construct(self, logits, length, text, letters):
        b, t, _ = logits.shape
        s = 2 * text.shape[1] + 1
        logp = ops.log_softmax(logits, axis=-1)
        blanks = ops.zeros_like(text)
        states = ops.concat((ops.stack((blanks, text), axis=2).reshape(b, s - 1), blanks[:, :1]), axis=1)
        emit = ops.gather_elements(logp, 2, ops.broadcast_to(states.expand_dims(1), (b, t, s)))
        # from two states before: only to a letter, and to another one
        skip = ops.logical_and(states[:, 2:] != 0, states[:, 2:] != states[:, :-2])
        skip = ops.pad(skip.astype(ms.float32), (2, 0))
        start = Tensor([[0.0] * 2 + [self.LOW] * (s - 2)], ms.float32)
        alpha = emit[:, 0] + start
        for j in range(1, t):
            one = ops.pad(alpha[:, :-1], (1, 0), value=self.LOW)
            two = ops.where(skip > 0, ops.pad(alpha[:, :-2], (2, 0), value=self.LOW), self.LOW)
            new = ops.logsumexp(ops.stack((alpha, one, two)), 0) + emit[:, j]
            alpha = ops.where((length > j).expand_dims(1), new, alpha)
        ends = ops.stack((2 * letters - 1, 2 * letters), axis=1)
        total = ops.logsumexp(ops.gather_elements(alpha, 1, ends), 1)
        return (-total / letters.astype(ms.float32)).mean()


class NoamRate(LearningRateSchedule):
    def __init__(self, warmup=4, factor=0.1):
        super().__init__()
        self.warmup, self.scale = warmup, factor / DIM ** 0.5

    def construct(self, global_step):
        n = ops.cast(global_step, ms.float32) + 1
        return self.scale * ops.minimum(ops.rsqrt(n), n * self.warmup ** -1.5)


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.1 * value).astype(np.float32)
    return (value / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(80 + step)
    frames = np.array([FRAMES, FRAMES - 5, FRAMES - 8])
    audio = rng.normal(0, 1, (BATCH, FRAMES, MELS)).astype(np.float32)
    audio[np.arange(FRAMES)[None] >= frames[:, None]] = 0
    text = rng.randint(1, VOCAB, (BATCH, 4))
    text[:, 1] = text[:, 0]  # a letter twice: a blank has to come between
    letters = np.array([4, 3, 2])
    text[np.arange(4)[None] >= letters[:, None]] = 0
    return audio, frames, text, letters


def load(net):
    w = {
        "front.window.weight": initial("subsampling.conv.weight", (DIM, MELS, 3)).transpose(0, 2, 1).reshape(DIM, -1),
        "front.window.bias": initial("subsampling.conv.bias", (DIM,)),
    }

    def dense(new, old, cout, cin, bias=True):
        w[new + ".weight"] = initial(old + ".weight", (cout, cin))
        if bias:
            w[new + ".bias"] = initial(old + ".bias", (cout,))

    def norm(new, old):
        w[new + ".gamma"], w[new + ".beta"] = initial(old + ".weight", (DIM,)), initial(old + ".bias", (DIM,))

    dense("front.proj", "subsampling.linear", DIM, DIM)
    dense("to_letters", "head", VOCAB, DIM)
    for j in range(LAYERS):
        old = f"blocks.{j}."
        for new, part in (("before", "ff1"), ("after", "ff2")):
            norm(f"{new}.{j}.0", f"{old}{part}.norm")
            dense(f"{new}.{j}.1", f"{old}{part}.fc1", 2 * DIM, DIM)
            dense(f"{new}.{j}.3", f"{old}{part}.fc2", DIM, 2 * DIM)
        a, c = f"attention.{j}.", f"convolution.{j}."
        norm(a + "ln", old + "attention.norm")
        w[a + "qk.weight"] = np.concatenate([initial(f"{old}attention.{x}.weight", (DIM, DIM)) for x in "qk"])
        dense(a + "v", old + "attention.v", DIM, DIM)
        dense(a + "pos", old + "attention.pos", DIM, DIM, bias=False)
        dense(a + "out", old + "attention.out", DIM, DIM)
        w[a + "uv"] = np.stack([initial(f"{old}attention.bias_{x}", (HEADS, SIZE)) for x in "uv"]).reshape(2, 1, HEADS, 1, SIZE)
        norm(c + "ln", old + "conv.norm")
        first, bias = initial(old + "conv.pointwise1.weight", (2 * DIM, DIM, 1))[..., 0], initial(old + "conv.pointwise1.bias", (2 * DIM,))
        w[c + "value.weight"], w[c + "gate.weight"] = np.split(first, 2)
        w[c + "value.bias"], w[c + "gate.bias"] = np.split(bias, 2)
        w[c + "depthwise.weight"] = initial(old + "conv.depthwise.weight", (DIM, 1, KERNEL))[:, :, None]
        norm(c + "bn", old + "conv.batch_norm")
        w[c + "last.weight"] = initial(old + "conv.pointwise2.weight", (DIM, DIM, 1))[..., 0]
        w[c + "last.bias"] = initial(old + "conv.pointwise2.bias", (DIM,))
        norm(f"final.{j}", old + "norm")
    for p in net.trainable_params():
        p.set_data(Tensor(np.ascontiguousarray(w.pop(p.name))))
    assert not w, w.keys()


def main():
    net, criterion = Encoder(), CTC()
    load(net)
    params = net.trainable_params()
    opt = nn.Adam(params, learning_rate=NoamRate(), beta1=0.9, beta2=0.98, eps=1e-9)

    def forward(audio, frames, text, letters):
        logits, length = net(audio, frames)
        return criterion(logits, length, text, letters)

    grad_fn = ms.value_and_grad(forward, None, params)
    net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            batch = [Tensor(a.astype(np.int32) if a.dtype == np.int64 else a) for a in make_batch(step)]
            loss, grads = grad_fn(*batch)
            opt(grads)
            run.step()
            gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
            wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
