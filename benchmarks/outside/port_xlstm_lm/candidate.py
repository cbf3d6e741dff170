"""Recurrent xLSTM in MindSpore: the mLSTM as a loop over its matrix memory, the four gates of the sLSTM in one projection."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

VOCAB, DIM, HEADS, SEQ, BATCH, PAD = 29, 16, 2, 4, 4, 0


def param(value, name):
    return Parameter(Tensor(np.ascontiguousarray(value), ms.float32), name=name)


class HeadwiseNorm(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.gamma = param(np.ones(width), "gamma")

    def construct(self, x):
        """x: (..., width); statistics over the channels of one head."""
        y = x.reshape(x.shape[:-1] + (self.heads, -1))
        centred = y - y.mean(axis=-1, keep_dims=True)
        var = ops.square(centred).mean(axis=-1, keep_dims=True)
        y = centred * ops.rsqrt(var + 1e-5)
        return y.reshape(x.shape) * self.gamma


class ShiftConv(nn.Cell):
    """Causal depthwise convolution as a sum of shifted inputs; taps (kernel, width), the last one is the present."""

    def __init__(self, width, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.taps = param(np.zeros((kernel, width)), "taps")
        self.bias = param(np.zeros(width), "bias")

    def construct(self, x):
        b, t, d = x.shape
        padded = ops.concat((ops.zeros((b, self.kernel - 1, d), x.dtype), x), axis=1)
        y = self.bias
        for j in range(self.kernel):
            y = y + padded[:, j:j + t] * self.taps[j]
        return y * ops.sigmoid(y)


class MatrixMemory(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.width, self.heads, self.size = width, heads, width // heads
        self.inp = nn.Dense(DIM, width, has_bias=False)
        self.gate = nn.Dense(DIM, width, has_bias=False)
        self.conv = ShiftConv(width)
        self.qk = nn.Dense(width, 2 * width, has_bias=False)
        self.v = nn.Dense(width, width, has_bias=False)
        self.if_gate = nn.Dense(3 * width, 2 * heads)
        self.norm = HeadwiseNorm(width, heads)
        self.learnable_skip = param(np.ones(width), "learnable_skip")
        self.out = nn.Dense(width, DIM, has_bias=False)

    def construct(self, x):
        b, t, _ = x.shape
        u = self.inp(x)
        a = self.conv(u)
        qk = self.qk(a)
        v = self.v(u)
        pre = self.if_gate(ops.concat((qk, v), axis=-1))
        log_i, log_f = pre[..., :self.heads], -ops.softplus(-pre[..., self.heads:])

        shape = (b, t, self.heads, self.size)
        q = qk[..., :self.width].reshape(shape)
        k = qk[..., self.width:].reshape(shape) * self.size ** -0.5
        v = v.reshape(shape)
        memory = ops.zeros((b, self.heads, self.size, self.size), x.dtype)
        total = ops.zeros((b, self.heads, self.size), x.dtype)
        m = ops.full((b, self.heads), -1e4, dtype=x.dtype)
        steps = []
        for s in range(t):
            m_next = ops.maximum(log_f[:, s] + m, log_i[:, s])
            keep = ops.exp(log_f[:, s] + m - m_next).expand_dims(-1)
            write = ops.exp(log_i[:, s] - m_next).expand_dims(-1)
            key = write * k[:, s]
            memory = keep.expand_dims(-1) * memory + key.expand_dims(-1) * v[:, s].expand_dims(-2)
            total = keep * total + key
            m = m_next
            read = ops.matmul(q[:, s].expand_dims(-2), memory).squeeze(-2)
            floor = ops.maximum(ops.abs((q[:, s] * total).sum(-1)), ops.exp(-m))
            steps.append(read / (floor.expand_dims(-1) + 1e-6))
        h = ops.stack(steps, axis=1).reshape(b, t, self.width)
        h = self.norm(h) + self.learnable_skip * a
        return self.out(h * ops.silu(self.gate(x)))


class ScalarMemory(nn.Cell):
    """Gates in the order z, i, f, o; the recurrent weights are one block diagonal (heads, size, 4 * size)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.conv = ShiftConv(width)
        self.zo = nn.Dense(width, 2 * width)
        self.if_gate = nn.Dense(width, 2 * width)
        self.r = param(np.zeros((heads, self.size, 4 * self.size)), "r")
        self.norm = HeadwiseNorm(width, heads)

    def cell(self, pre, state, first):
        h, c, n, m = state
        rec = ops.bmm(h.transpose(1, 0, 2), self.r).transpose(1, 0, 2)
        z, i, f, o = ops.split(pre + rec, self.size, axis=-1)
        log_f = -ops.softplus(-f)
        m_next = i if first else ops.maximum(log_f + m, i)
        scale = ops.exp(i - m_next)
        forget = ops.exp(log_f + m - m_next)
        c = forget * c + scale * ops.tanh(z)
        n = forget * n + scale
        h = ops.sigmoid(o) * (c / n)
        return h, c, n, m_next

    def construct(self, x):
        b, t, d = x.shape
        zo = self.zo(x).reshape(b, t, 2, self.heads, self.size)
        gates = self.if_gate(self.conv(x)).reshape(b, t, 2, self.heads, self.size)
        pre = ops.concat((zo[:, :, 0], gates[:, :, 0], gates[:, :, 1], zo[:, :, 1]), axis=-1)
        zero = ops.zeros((b, self.heads, self.size), x.dtype)
        state, out = (zero, zero, zero, zero), []
        for s in range(t):
            state = self.cell(pre[:, s], state, s == 0)
            out.append(state[0].reshape(b, 1, d))
        return self.norm(ops.concat(out, axis=1))


class LanguageModel(nn.Cell):
    def __init__(self):
        super().__init__()
        hidden = int(DIM * 4 / 3)
        self.table = param(np.zeros((VOCAB, DIM)), "table")
        self.norms = nn.CellList([nn.LayerNorm((DIM,), epsilon=1e-5) for _ in range(4)])
        self.mlstm = MatrixMemory(2 * DIM, HEADS)
        self.slstm = ScalarMemory(DIM, HEADS)
        self.ff_gate = nn.Dense(DIM, hidden)
        self.ff_up = nn.Dense(DIM, hidden)
        self.ff_down = nn.Dense(hidden, DIM)

    def construct(self, ids):
        x = ops.gather(self.table, ids, 0)
        x = x + self.mlstm(self.norms[0](x))
        x = x + self.slstm(self.norms[1](x))
        y = self.norms[2](x)
        x = x + self.ff_down(ops.gelu(self.ff_gate(y), approximate="none") * self.ff_up(y))
        return ops.matmul(self.norms[3](x), self.table.T)


class AdamW:
    """Decoupled decay and bias correction; nn.AdamWeightDecay has no bias correction."""

    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, decay=0.1):
        self.params, self.lr, self.beta1, self.beta2, self.eps = params, lr, beta1, beta2, eps
        self.decay = [0.0 if self.is_vector(p) else decay for p in params]
        self.m = [ops.zeros_like(p) for p in params]
        self.v = [ops.zeros_like(p) for p in params]
        self.t = 0

    @staticmethod
    def is_vector(p):
        return p.ndim == 1

    def __call__(self, grads):
        self.t += 1
        c1, c2 = 1 - self.beta1**self.t, 1 - self.beta2**self.t
        for j, (p, g) in enumerate(zip(self.params, grads)):
            self.m[j] = self.beta1 * self.m[j] + (1 - self.beta1) * g
            self.v[j] = self.beta2 * self.v[j] + (1 - self.beta2) * g * g
            update = (self.m[j] / c1) / (ops.sqrt(self.v[j] / c2) + self.eps)
            p.set_data(p * (1 - self.lr * self.decay[j]) - self.lr * update)


def loss_fn(logits, labels):
    logp = ops.log_softmax(logits, axis=-1)
    nll = -ops.gather_elements(logp, 2, labels.expand_dims(-1)).squeeze(-1)
    mask = (labels != PAD).astype(ms.float32)
    return (nll * mask).sum() / mask.sum()


def clip_by_norm(grads, limit=1.0):
    norm = ops.sqrt(sum(ops.square(g).sum() for g in grads))
    scale = ops.minimum(limit / (norm + 1e-6), Tensor(1.0, ms.float32))
    return [g * scale for g in grads], norm


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if name.endswith("fgate.bias"):
        return np.linspace(3, 5, shape[0]).astype(np.float32)
    if "norm" in name and name.endswith("weight"):
        return (float("layer.norm" not in name) + 0.1 * value).astype(np.float32)
    if name.endswith("skip"):
        return (1 + 0.1 * value).astype(np.float32)
    if len(shape) == 1:
        return (0.2 * value).astype(np.float32)
    return (value / np.sqrt(shape[-1])).astype(np.float32)


def converted():
    inner, hidden, size = 2 * DIM, int(DIM * 4 / 3), DIM // HEADS
    m, s = "blocks.0.layer.", "blocks.1.layer."
    up = initial(m + "up.weight", (2 * inner, DIM))
    ff_up, ff_bias = initial("blocks.1.ffn.up.weight", (2 * hidden, DIM)), initial("blocks.1.ffn.up.bias", (2 * hidden,))
    w = {
        "table": initial("embedding.weight", (VOCAB, DIM)),
        "mlstm.inp.weight": up[:inner],
        "mlstm.gate.weight": up[inner:],
        "mlstm.qk.weight": np.concatenate([initial(m + n + ".weight", (inner, inner)) for n in "qk"]),
        "mlstm.v.weight": initial(m + "v.weight", (inner, inner)),
        "mlstm.if_gate.weight": np.concatenate([initial(m + n + "gate.weight", (HEADS, 3 * inner)) for n in "if"]),
        "mlstm.if_gate.bias": np.concatenate([initial(m + n + "gate.bias", (HEADS,)) for n in "if"]),
        "mlstm.learnable_skip": initial(m + "skip", (inner,)),
        "mlstm.out.weight": initial(m + "down.weight", (DIM, inner)),
        "ff_gate.weight": ff_up[:hidden], "ff_gate.bias": ff_bias[:hidden],
        "ff_up.weight": ff_up[hidden:], "ff_up.bias": ff_bias[hidden:],
        "ff_down.weight": initial("blocks.1.ffn.down.weight", (DIM, hidden)),
        "ff_down.bias": initial("blocks.1.ffn.down.bias", (DIM,)),
    }
    for new, old, width in (("mlstm", m, inner), ("slstm", s, DIM)):
        w[new + ".conv.taps"] = initial(old + "conv.conv.weight", (width, 1, 4))[:, 0].T
        w[new + ".conv.bias"] = initial(old + "conv.conv.bias", (width,))
        w[new + ".norm.gamma"] = 1 + initial(old + "norm.weight", (width,))
    for j, old in enumerate(("blocks.0.norm", "blocks.1.norm", "blocks.1.ffn_norm", "norm")):
        w[f"norms.{j}.gamma"] = initial(old + ".weight", (DIM,))
        w[f"norms.{j}.beta"] = initial(old + ".bias", (DIM,))
    for pair in ("zo", "if"):
        name = "zo" if pair == "zo" else "if_gate"
        w[f"slstm.{name}.weight"] = np.concatenate([initial(f"{s}w{g}.weight", (DIM, DIM)) for g in pair])
        w[f"slstm.{name}.bias"] = np.concatenate([initial(f"{s}w{g}.bias", (DIM,)) for g in pair])
    i, f, z, o = initial(s + "recurrent", (4, HEADS, size, size))
    w["slstm.r"] = np.concatenate([z, i, f, o], axis=-1)
    return w


def make_batch(step):
    rng = np.random.RandomState(100 + step)
    ids = rng.randint(1, VOCAB, (BATCH, SEQ + 1))
    ids[:, 4] = ids[:, 1]
    length = rng.randint(3, SEQ + 2, (BATCH, 1))
    length[0] = SEQ + 1
    ids[np.arange(SEQ + 1)[None] >= length] = PAD
    return ids


def main():
    net = LanguageModel()
    weights = converted()
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(np.ascontiguousarray(weights.pop(name))))
    assert not weights, weights.keys()
    params = net.trainable_params()
    optimizer = AdamW(params)
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, params)
    net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            ids = make_batch(step).astype(np.int32)
            loss, grads = grad_fn(Tensor(ids[:, :-1]), Tensor(ids[:, 1:]))
            grads, gnorm = clip_by_norm(grads)
            optimizer(grads)
            run.step()
            wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {float(gnorm.asnumpy()):.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
