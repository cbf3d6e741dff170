"""Retrieval model in MindSpore: ids are hashed in numpy, one table holds all hash spaces, bags are masked means."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

ITEMS, TAGS, BUCKETS, DIM, OUT, BATCH, BAG = 50, 12, 23, 8, 6, 8, 5
PRIMES = np.array([2654435761, 40503])
# rows of the table: user hash 1, user hash 2, item hash 1, item hash 2, tags; -1 stands for padding
USER, ITEM, TAG = 0, 2 * BUCKETS, 4 * BUCKETS


def lookup_rows(ids, base):
    """(batch, bag) ids to (batch, bag, 2) rows."""
    ids = ids.reshape(len(ids), -1, 1)
    bucket = (ids * PRIMES + 7) % (BUCKETS - 1) + 1
    rows = base + bucket + np.arange(2) * BUCKETS
    return np.where(ids == 0, -1, rows).astype(np.int32)


def preprocess(user, watched, item, tags, weight, probability):
    tag_rows = np.where(tags == 0, -1, tags + TAG)[..., None].astype(np.int32)
    twins = (item[:, None] == item[None]) & ~np.eye(len(item), dtype=bool)
    share = weight / weight.sum()
    return lookup_rows(user, USER), lookup_rows(watched, ITEM), lookup_rows(item, ITEM), tag_rows, twins, share, np.log(probability)


class BagPool(nn.Cell):
    def __init__(self, rows, dim):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((rows, dim)), ms.float32), name="weight")

    def construct(self, rows):
        valid = (rows >= 0).astype(ms.float32)
        vectors = self.weight[ops.relu(rows)] * valid.expand_dims(-1)
        count = valid[..., 0].sum(axis=1)
        return vectors.sum(axis=(1, 2)) / count.expand_dims(-1)


class Tower(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.SequentialCell(nn.Dense(2 * DIM, 16), nn.LeakyReLU(alpha=0.1), nn.Dense(16, OUT))

    def construct(self, left, right):
        x = self.dense(ops.concat((left, right), axis=-1))
        length = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
        return x / ops.maximum(length, 1e-12)


class Retrieval(nn.Cell):
    def __init__(self, max_scale=100.0):
        super().__init__()
        self.pool = BagPool(TAG + TAGS, DIM)
        self.query, self.candidate = Tower(), Tower()
        self.log_scale = Parameter(Tensor(0.0, ms.float32), name="log_scale")
        self.max_scale = max_scale

    def construct(self, user, watched, item, tags):
        q = self.query(self.pool(user), self.pool(watched))
        c = self.candidate(self.pool(item), self.pool(tags))
        scale = ops.minimum(ops.exp(self.log_scale), self.max_scale)
        return ops.matmul(q, c.T) * scale


class RetrievalLoss(nn.Cell):
    """Softmax over the batch; twins of the positive leave the sum of the others."""

    def construct(self, logits, twins, share, log_q):
        logits = logits - log_q.expand_dims(0)
        positive = ops.diagonal(logits)
        others = ops.where(twins, ops.full_like(logits, -1e9), logits)
        top = ops.stop_gradient(others.max(axis=1))
        partition = ops.log(ops.exp(others - top.expand_dims(1)).sum(axis=1)) + top
        return ((partition - positive) * share).sum()


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if name == "log_scale":
        return np.full(shape, np.log(5.0), np.float32)
    if "table" in name:
        return (0.3 * value).astype(np.float32)
    return (value * (0.1 if len(shape) == 1 else 1 / np.sqrt(shape[-1]))).astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(300 + step)
    user = rng.randint(1, 10**6, BATCH)
    popular = rng.zipf(1.5, size=(BATCH, BAG)) % ITEMS + 1
    watched = np.where(np.arange(BAG)[None] < rng.randint(1, BAG + 1, (BATCH, 1)), popular, 0)
    item = rng.randint(1, ITEMS + 1, BATCH)
    item[-1] = item[0]  # the same item twice in the batch
    tags = rng.randint(1, TAGS, (BATCH, 3))
    tags[rng.rand(BATCH, 3) < 0.3] = 0
    tags[:, 0] = np.maximum(tags[:, 0], 1)
    tags[-1] = tags[0]
    weight = rng.randint(1, 5, BATCH).astype(np.float32)  # seconds watched, in classes
    probability = (1 / (item + 3.0) / 3).astype(np.float32)  # of being drawn into a batch
    return user, watched, item, tags, weight, probability


def load(net):
    hashed = [initial(f"{t}_table.table{k}.weight", (BUCKETS, DIM)) for t in ("user", "item") for k in (1, 2)]
    w = {"pool.weight": np.concatenate(hashed + [initial("tag_table.weight", (TAGS, DIM))]), "log_scale": initial("log_scale", ())}
    for new, old in (("query", "query_tower"), ("candidate", "item_tower")):
        for j, fc, shape in ((0, "fc1", (16, 2 * DIM)), (2, "fc2", (OUT, 16))):
            w[f"{new}.dense.{j}.weight"] = initial(f"{old}.{fc}.weight", shape)
            w[f"{new}.dense.{j}.bias"] = initial(f"{old}.{fc}.bias", shape[:1])
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(w[name]))


class TwoOptimizers:
    """Adagrad for the table, momentum for the rest."""

    def __init__(self, params):
        self.is_table = [p.name.startswith("pool") for p in params]
        table = [p for p, t in zip(params, self.is_table) if t]
        rest = [p for p, t in zip(params, self.is_table) if not t]
        self.adagrad = nn.Adagrad(table, accum=0.01, learning_rate=0.1)
        self.momentum = nn.Momentum(rest, learning_rate=0.05, momentum=0.9)

    def __call__(self, grads):
        self.adagrad(tuple(g for g, t in zip(grads, self.is_table) if t))
        self.momentum(tuple(g for g, t in zip(grads, self.is_table) if not t))


def main():
    net, criterion = Retrieval(), RetrievalLoss()
    load(net)
    params = net.trainable_params()
    optimizer = TwoOptimizers(params)

    def forward(user, watched, item, tags, *rest):
        return criterion(net(user, watched, item, tags), *rest)

    grad_fn = ms.value_and_grad(forward, None, params)
    net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            loss, grads = grad_fn(*(Tensor(a) for a in preprocess(*make_batch(step))))
            optimizer(grads)
            run.step()
            gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
            wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
