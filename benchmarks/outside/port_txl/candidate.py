"""Transformer-XL in MindSpore, batch first: positions are looked up by distance, keys and values of the memory are joined per head."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

VOCAB, DIM, HEADS, HEAD, INNER, LAYERS, LENGTH, MEMORY, BATCH = 29, 16, 2, 6, 24, 2, 7, 5, 3


def sinusoids(klen):
    """Row d is the embedding of distance d."""
    angle = np.arange(klen)[:, None] / 10000 ** (np.arange(0, DIM, 2) / DIM)
    return Tensor(np.concatenate([np.sin(angle), np.cos(angle)], axis=1), ms.float32)


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query = nn.Dense(DIM, HEADS * HEAD, has_bias=False)
        self.key = nn.Dense(DIM, HEADS * HEAD, has_bias=False)
        self.value = nn.Dense(DIM, HEADS * HEAD, has_bias=False)
        self.relative = nn.Dense(DIM, HEADS * HEAD, has_bias=False)
        self.output = nn.Dense(HEADS * HEAD, DIM, has_bias=False)
        self.u = Parameter(Tensor(np.zeros((HEADS, 1, HEAD)), ms.float32), name="u")
        self.v = Parameter(Tensor(np.zeros((HEADS, 1, HEAD)), ms.float32), name="v")
        self.norm1 = nn.LayerNorm((DIM,), epsilon=1e-5)
        self.dense1, self.dense2 = nn.Dense(DIM, INNER), nn.Dense(INNER, DIM)
        self.norm2 = nn.LayerNorm((DIM,), epsilon=1e-5)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD).swapaxes(1, 2)

    def construct(self, x, memory, table, distance, hidden):
        context = ops.concat((memory, x), axis=1) if memory is not None else x
        q = self.split(self.query(x))
        k, v = self.split(self.key(context)), self.split(self.value(context))
        r = self.relative(table).reshape(-1, HEADS, HEAD).transpose(1, 2, 0)
        by_distance = ops.matmul(q + self.v, r)  # batch, head, query, distance
        index = ops.broadcast_to(distance[None, None], (x.shape[0], HEADS) + distance.shape)
        score = ops.matmul(q + self.u, k.swapaxes(-1, -2)) + ops.gather_elements(by_distance, 3, index)
        score = score / np.sqrt(HEAD).item() + hidden * -1e9
        out = ops.matmul(ops.softmax(score, axis=-1), v).swapaxes(1, 2).reshape(x.shape[0], x.shape[1], -1)
        x = self.norm1(x + self.output(out))
        return self.norm2(x + self.dense2(ops.relu(self.dense1(x))))


class XLModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(np.zeros((VOCAB, DIM)), ms.float32), name="table")
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.bias = Parameter(Tensor(np.zeros(VOCAB), ms.float32), name="bias")

    def construct(self, words, memories):
        x = ops.gather(self.table, words, 0) * DIM**0.5
        past = 0 if memories[0] is None else memories[0].shape[1]
        steps, klen = words.shape[1], past + words.shape[1]
        ahead = (np.arange(steps) + past)[:, None] - np.arange(klen)[None]
        distance = Tensor(np.maximum(ahead, 0), ms.int32)
        hidden = Tensor(ahead < 0, ms.float32)
        positions = sinusoids(klen)
        kept = []
        for layer, memory in zip(self.layers, memories):
            whole = x if memory is None else ops.concat((memory, x), axis=1)
            kept.append(ops.stop_gradient(whole[:, -MEMORY:]))
            x = layer(x, memory, positions, distance, hidden)
        return ops.matmul(x, self.table.T) + self.bias, kept


def token_loss(logits, target):
    logp = ops.log_softmax(logits, -1)
    return -ops.gather_elements(logp, 2, target.expand_dims(-1)).mean()


class AdamClipped:
    """Gradients are clipped by their norm together, then Adam as PyTorch has it."""

    def __init__(self, params, lr, beta1, beta2, eps, clip):
        self.params, self.lr, self.betas, self.eps, self.clip, self.t = params, lr, (beta1, beta2), eps, clip, 0
        self.m = [ops.zeros_like(p) for p in params]
        self.v = [ops.zeros_like(p) for p in params]

    def __call__(self, grads):
        self.t += 1
        b1, b2 = self.betas
        norm = ops.sqrt(sum(ops.square(g).sum() for g in grads))
        scale = ops.minimum(self.clip / (norm + 1e-6), 1.0)
        for i, (p, g) in enumerate(zip(self.params, grads)):
            g = g * scale
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            denominator = ops.sqrt(self.v[i]) / (1 - b2**self.t) ** 0.5 + self.eps
            ops.assign_sub(p, self.lr / (1 - b1**self.t) * self.m[i] / denominator)


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm.weight" in name:
        value = 1 + 0.2 * value
    elif len(shape) == 1 or "_bias" in name:
        value = 0.2 * value
    else:
        value = value / np.sqrt(shape[-1])
    return value.astype(np.float32)


def load(net):
    w = {"table": initial("embed.weight", (VOCAB, DIM)), "bias": initial("out_bias", (VOCAB,))}
    for i in range(LAYERS):
        a, f, n = f"attn.{i}.", f"ff.{i}.", f"layers.{i}."
        w[n + "query.weight"], w[n + "key.weight"], w[n + "value.weight"] = np.split(initial(a + "qkv_net.weight", (3 * HEADS * HEAD, DIM)), 3)
        w[n + "relative.weight"] = initial(a + "r_net.weight", (HEADS * HEAD, DIM))
        w[n + "output.weight"] = initial(a + "o_net.weight", (DIM, HEADS * HEAD))
        w[n + "u"], w[n + "v"] = (initial(a + b, (HEADS, HEAD))[:, None] for b in ("r_w_bias", "r_r_bias"))
        for new, old in (("norm1", a + "norm"), ("norm2", f + "norm")):
            w[n + new + ".gamma"], w[n + new + ".beta"] = initial(old + ".weight", (DIM,)), initial(old + ".bias", (DIM,))
        w[n + "dense1.weight"], w[n + "dense1.bias"] = initial(f + "core.0.weight", (INNER, DIM)), initial(f + "core.0.bias", (INNER,))
        w[n + "dense2.weight"], w[n + "dense2.bias"] = initial(f + "core.2.weight", (DIM, INNER)), initial(f + "core.2.bias", (DIM,))
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(w[name]))


def main():
    net = XLModel()
    load(net)
    params = net.trainable_params()
    optimizer = AdamClipped(params, 2e-3, 0.9, 0.98, 1e-6, 0.25)
    text = np.random.RandomState(17).randint(0, VOCAB, (64, BATCH)).T
    memories = [None] * LAYERS

    def forward(data, target, memories):
        losses = []
        for words, wanted in zip(data, target):
            logits, memories = net(words, memories)
            losses.append(token_loss(logits, wanted))
        return (losses[0] + losses[1]) * 0.5, memories

    grad_fn = ms.value_and_grad(forward, None, params, has_aux=True)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            starts = [(2 * step + s) * LENGTH for s in (0, 1)]
            data = [Tensor(text[:, s : s + LENGTH], ms.int32) for s in starts]
            target = [Tensor(text[:, s + 1 : s + LENGTH + 1], ms.int32) for s in starts]
            (loss, memories), grads = grad_fn(data, target, memories)
            optimizer(grads)
            run.step()
            print(f"step {step} loss {float(loss.asnumpy()):.8f} w {sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params):.8f}")


if __name__ == "__main__":
    main()
