"""MMoE with DIN attention in MindSpore: one table for all fields, experts in one stack, one gate for both tasks."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

FIELDS = {"user": 23, "age": 7, "city": 11}
ITEMS, DIM, HIST, BATCH = 31, 6, 5, 6
EXPERTS, EXPERT_DIM, TASKS = 3, 10, 2


def zeros(name, *shape):
    return Parameter(Tensor(np.zeros(shape), ms.float32), name=name)


class Dice(nn.Cell):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps, affine=False, momentum=0.9)
        self.alpha = zeros("alpha", dim)

    def construct(self, x):
        p = ops.sigmoid(self.bn(x))
        return x * (p + (1 - p) * self.alpha)


class InterestUnit(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Dense(4 * dim, 12)
        self.prelu = nn.PReLU()
        self.fc2 = nn.Dense(12, 1)

    def construct(self, target, history, mask):
        b, n, d = history.shape
        query = ops.broadcast_to(target.expand_dims(1), (b, n, d))
        x = ops.concat((query, history, query - history, query * history), axis=-1)
        # PReLU has its channels in axis 1
        score = self.fc2(self.prelu(self.fc1(x.reshape(b * n, -1)))).reshape(b, n)
        score = score * mask.astype(score.dtype)
        return (score.expand_dims(-1) * history).sum(axis=1)


class Experts(nn.Cell):
    """All experts at once: weights (expert, in, out)."""

    def __init__(self, num, din, hidden, dout):
        super().__init__()
        self.w1, self.b1 = zeros("w1", num, din, hidden), zeros("b1", num, 1, hidden)
        self.w2, self.b2 = zeros("w2", num, hidden, dout), zeros("b2", num, 1, dout)
        self.num = num

    def construct(self, x):
        x = ops.tile(x.expand_dims(0), (self.num, 1, 1))
        x = ops.relu(ops.bmm(x, self.w1) + self.b1)
        return ops.relu(ops.bmm(x, self.w2) + self.b2)


class Tower(nn.Cell):
    def __init__(self, din):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(din, 8), Dice(8), nn.Dense(8, 1))

    def construct(self, x):
        return ops.squeeze(self.layers(x), -1)


class MMoE(nn.Cell):
    def __init__(self):
        super().__init__()
        sizes = list(FIELDS.values())
        self.offsets = Tensor(np.cumsum([0] + sizes[:-1]), ms.int32)
        self.table = nn.Embedding(sum(sizes), DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.interest = InterestUnit(DIM)
        din = DIM * (len(FIELDS) + 2) + 2
        self.experts = Experts(EXPERTS, din, 16, EXPERT_DIM)
        self.gate = nn.Dense(din, TASKS * EXPERTS, has_bias=False)
        self.towers = nn.CellList([Tower(EXPERT_DIM) for _ in range(TASKS)])

    def construct(self, sparse, dense, item, history):
        b = sparse.shape[0]
        fields = self.table(sparse + self.offsets).reshape(b, -1)
        target = self.item(item)
        interest = self.interest(target, self.item(history), history != 0)
        x = ops.concat((fields, target, interest, ops.log1p(dense)), axis=1)
        outputs = self.experts(x).transpose(1, 0, 2)
        gates = ops.softmax(self.gate(x).reshape(b, TASKS, EXPERTS), axis=-1)
        mixed = ops.bmm(gates, outputs)
        probs = [ops.sigmoid(tower(mixed[:, i])) for i, tower in enumerate(self.towers)]
        return probs[0], probs[0] * probs[1]


class WithLoss(nn.Cell):
    def __init__(self, net, l2=1e-2):
        super().__init__()
        self.net = net
        self.bce = nn.BCELoss(reduction="mean")
        self.l2 = l2
        self.l2_loss = ops.L2Loss()  # sum(w ** 2) / 2

    def construct(self, sparse, dense, item, history, click, buy):
        p_ctr, p_ctcvr = self.net(sparse, dense, item, history)
        loss = self.bce(p_ctr, click) + 0.5 * self.bce(p_ctcvr, buy)
        return loss + self.l2 * (self.l2_loss(self.net.table.embedding_table) + self.l2_loss(self.net.item.embedding_table))


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if "alpha" in name or name == "attention.net.1.weight":
        return np.full(shape, 0.25, np.float32) + rng.uniform(0, 0.1, shape).astype(np.float32)
    scale = 0.3 if len(shape) == 1 or "item" in name or "embeddings" in name else 1 / np.sqrt(shape[-1])
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def init_weights(net):
    din = DIM * (len(FIELDS) + 2) + 2
    value = {
        "table.embedding_table": np.concatenate([initial(f"embeddings.{f}.weight", (n, DIM)) for f, n in FIELDS.items()]),
        "item.embedding_table": initial("item.weight", (ITEMS, DIM)),
        "gate.weight": np.concatenate([initial(f"gates.{i}.weight", (EXPERTS, din)) for i in range(TASKS)]),
        "interest.prelu.w": initial("attention.net.1.weight", (1,)),
    }
    for a, b, shape in (("fc1", "0", (12, 4 * DIM)), ("fc2", "2", (1, 12))):
        value[f"interest.{a}.weight"] = initial(f"attention.net.{b}.weight", shape)
        value[f"interest.{a}.bias"] = initial(f"attention.net.{b}.bias", shape[:1])
    for k, shape in (("1", (16, din)), ("2", (EXPERT_DIM, 16))):
        value["experts.w" + k] = np.stack([initial(f"experts.{i}.fc{k}.weight", shape).T for i in range(EXPERTS)])
        value["experts.b" + k] = np.stack([initial(f"experts.{i}.fc{k}.bias", shape[:1])[None] for i in range(EXPERTS)])
    for i in range(TASKS):
        t, r = f"towers.{i}.layers.", f"towers.{i}."
        value[t + "0.weight"], value[t + "0.bias"] = initial(r + "fc1.weight", (8, EXPERT_DIM)), initial(r + "fc1.bias", (8,))
        value[t + "1.alpha"] = initial(r + "act.alpha", (8,))
        value[t + "2.weight"], value[t + "2.bias"] = initial(r + "fc2.weight", (1, 8)), initial(r + "fc2.bias", (1,))
    for name, p in net.parameters_and_names():
        if p.requires_grad:
            p.set_data(Tensor(np.ascontiguousarray(value[name])))


def make_batch(step):
    rng = np.random.RandomState(7 + step)
    sparse = np.stack([rng.randint(0, n, BATCH) for n in FIELDS.values()], 1)
    dense = rng.exponential(3.0, (BATCH, 2)).astype(np.float32)
    item = rng.randint(1, ITEMS, BATCH)
    history = rng.randint(1, ITEMS, (BATCH, HIST))
    history[np.arange(HIST)[None] >= rng.randint(1, HIST + 1, (BATCH, 1))] = 0
    click = (rng.rand(BATCH) < 0.5).astype(np.float32)
    click[0] = 1
    return sparse, dense, item, history, click, click * (rng.rand(BATCH) < 0.6).astype(np.float32)


def main():
    net = MMoE()
    init_weights(net)
    train_net = WithLoss(net)
    opt = nn.Adagrad(net.trainable_params(), accum=0.1, learning_rate=0.05)
    grad_fn = ms.value_and_grad(train_net, None, opt.parameters)
    train_net.set_train()
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            data = [Tensor(a.astype(np.int32) if a.dtype == np.int64 else a) for a in make_batch(step)]
            loss, grads = grad_fn(*data)
            opt(grads)
            run.step()
            gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
            wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in net.trainable_params()))
            print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
