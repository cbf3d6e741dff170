"""Bootstrapped graph latents in MindSpore: segment sums, both views as one graph where the norm allows it, target weights in a dict."""
import math
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

NODES, EDGES, FEATURES, EDGE, HEADS, HEAD, OUT = 14, 40, 7, 3, 2, 5, 6
WIDE = HEADS * HEAD
SHAPES = {
    "conv1.ends": (2 * WIDE, FEATURES), "conv1.ends_bias": (2 * WIDE,), "conv1.kind": (WIDE, EDGE), "conv1.att": (HEADS, HEAD), "conv1.bias": (WIDE,),
    "conv2.ends": (2 * WIDE, WIDE), "conv2.ends_bias": (2 * WIDE,), "conv2.kind": (WIDE, EDGE), "conv2.att": (HEADS, HEAD), "conv2.bias": (WIDE,),
    "norm1.gamma": (WIDE,), "norm1.beta": (WIDE,), "norm2.gamma": (WIDE,), "norm2.beta": (WIDE,), "slope": (1,),
    "skip": (WIDE, FEATURES), "out": (OUT, WIDE), "out_bias": (OUT,),
}


def dense(x, weight, bias=None):
    y = ops.matmul(x, weight.T)
    return y if bias is None else y + bias


def graph_attention(p, x, source, target, kind):
    both = dense(x, p["ends"], p["ends_bias"]).reshape(len(x), 2, HEADS, HEAD)
    sent, received = both[:, 0][source], both[:, 1][target]
    hidden = sent + received + dense(kind, p["kind"]).reshape(-1, HEADS, HEAD)
    hidden = ops.maximum(hidden, 0.2 * hidden)
    score = ops.exp((hidden * p["att"]).sum(axis=-1))
    total = ops.unsorted_segment_sum(score, target, len(x))
    sums = ops.unsorted_segment_sum(sent * score.expand_dims(-1), target, len(x))
    return (sums / total.expand_dims(-1)).reshape(len(x), -1) + p["bias"]


def normalise(x, gamma, beta, axis):
    mean = x.mean(axis=axis, keep_dims=True)
    var = ops.square(x - mean).mean(axis=axis, keep_dims=True)
    return (x - mean) / ops.sqrt(var + 1e-5) * gamma + beta


class Weights(nn.Cell):
    """All that an encoder has, by its names; `pick` gives those of one layer."""

    def __init__(self, **settings):
        super().__init__()
        for key, shape in SHAPES.items():
            self.insert_param_to_cell(key.replace(".", "_"), Parameter(ops.zeros(shape, ms.float32), **settings))

    def get(self, key):
        return getattr(self, key.replace(".", "_"))

    def pick(self, layer):
        return {k.split(".")[1]: self.get(k) for k in SHAPES if k.startswith(layer + ".")}

    def construct(self, x, source, target, kind):
        h = normalise(graph_attention(self.pick("conv1"), x, source, target, kind), self.get("norm1.gamma"), self.get("norm1.beta"), 0)
        h = ops.relu(h) - self.get("slope") * ops.relu(-h)
        h = graph_attention(self.pick("conv2"), h, source, target, kind) + dense(x, self.get("skip"))
        h = normalise(h, self.get("norm2.gamma"), self.get("norm2.beta"), 1)
        h = ops.where(h > 0, h, ops.exp(ops.minimum(h, 0.0)) - 1)
        return dense(h, self.get("out"), self.get("out_bias"))


class Head(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Dense(OUT, 9), nn.PReLU(9), nn.Dense(9, OUT)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Bootstrap(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fast, self.head, self.slow = Weights(), Head(), Weights(requires_grad=False)

    @staticmethod
    def unit(x):
        return x / ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))

    def construct(self, *views):
        guess = self.unit(self.head(ops.concat([self.fast(*view) for view in views])))
        aim = self.unit(ops.stop_gradient(ops.concat([self.slow(*view) for view in reversed(views)])))
        return ops.square(guess - aim).sum() / NODES / 2


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        value = 1 + 0.2 * value
    elif "act" in name or name == "predictor.1.weight":
        value = 0.25 + 0.05 * value
    elif len(shape) == 1:
        value = 0.2 * value
    else:
        value = value / np.sqrt(shape[-1])
    return value.astype(np.float32)


def encoder_weights(old):
    w = {}
    for conv, cin in (("conv1", FEATURES), ("conv2", WIDE)):
        p = f"{old}.{conv}."
        w[conv + ".ends"] = np.concatenate([initial(p + f"lin_{s}.weight", (WIDE, cin)) for s in "lr"])
        w[conv + ".ends_bias"] = np.concatenate([initial(p + f"lin_{s}.bias", (WIDE,)) for s in "lr"])
        w[conv + ".kind"], w[conv + ".att"] = initial(p + "lin_edge.weight", (WIDE, EDGE)), initial(p + "att", (1, HEADS, HEAD))[0]
        w[conv + ".bias"] = initial(p + "bias", (WIDE,))
    for norm in ("norm1", "norm2"):
        w[norm + ".gamma"], w[norm + ".beta"] = initial(f"{old}.{norm}.weight", (WIDE,)), initial(f"{old}.{norm}.bias", (WIDE,))
    w["slope"], w["skip"] = initial(old + ".act1.weight", (1,)), initial(old + ".skip.weight", (WIDE, FEATURES))
    w["out"], w["out_bias"] = initial(old + ".out.weight", (OUT, WIDE)), initial(old + ".out.bias", (OUT,))
    return w


def load(net):
    for cell, old in ((net.fast, "online"), (net.slow, "target")):
        for key, value in encoder_weights(old).items():
            cell.get(key).set_data(Tensor(value))
    for cell, i, shape in ((net.head.fc1, 0, (9, OUT)), (net.head.fc2, 2, (OUT, 9))):
        cell.weight.set_data(Tensor(initial(f"predictor.{i}.weight", shape)))
        cell.bias.set_data(Tensor(initial(f"predictor.{i}.bias", shape[:1])))
    for p in net.head.act.get_parameters():
        p.set_data(Tensor(initial("predictor.1.weight", (9,))))


def make_views(step):
    rng = np.random.RandomState(500 + step)
    graph = np.random.RandomState(9)
    x = graph.standard_normal((NODES, FEATURES)).astype(np.float32)
    edges = np.concatenate([graph.randint(0, NODES, (2, EDGES)), np.tile(np.arange(NODES), (2, 1))], axis=1)
    kind = graph.standard_normal((edges.shape[1], EDGE)).astype(np.float32)
    views = []
    for drop_edge, drop_feature in ((0.2, 0.1), (0.4, 0.3)):
        keep = (rng.rand(edges.shape[1]) >= drop_edge) | (np.arange(edges.shape[1]) >= EDGES)
        seen = rng.rand(FEATURES) >= drop_feature
        source, target = edges[:, keep].astype(np.int32)
        views.append(tuple(Tensor(a) for a in ((x * seen).astype(np.float32), source, target, kind[keep])))
    return views


def main():
    net = Bootstrap()
    load(net)
    net.set_train()
    params = net.trainable_params()
    optimizer = optim.AdamW(params, lr=0.0, weight_decay=1e-2, eps=1e-5)
    grad_fn = ms.value_and_grad(net, None, params)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            rate = 5e-3 * min(step + 1, 2) / 2
            keep = 0.95 - 0.05 * math.cos(math.pi * step / 10)
            loss, grads = grad_fn(*make_views(step))
            ops.assign(optimizer.param_groups[0]["lr"], rate)
            optimizer(grads)
            for key in SHAPES:
                slow, fast = net.slow.get(key), net.fast.get(key)
                slow.set_data(slow * keep + fast * (1 - keep))
            run.step()
            total = sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in net.get_parameters())
            print(f"step {step} loss {float(loss.asnumpy()):.8f} w {total:.8f}")


if __name__ == "__main__":
    main()
