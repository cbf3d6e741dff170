"""Two-tower retrieval: hashed embedding bags, normalised towers, in-batch softmax with logQ correction and accidental hits."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

ITEMS, TAGS, BUCKETS, DIM, OUT, BATCH, BAG = 50, 12, 23, 8, 6, 8, 5
SEEDS = (2654435761, 40503)


def hashed(ids, seed):
    """Bucket 0 is kept for padding."""
    return torch.where(ids == 0, torch.zeros_like(ids), (ids * seed + 7) % (BUCKETS - 1) + 1)


class HashedBag(nn.Module):
    """Two hash functions in two tables, their vectors are added; padding takes no part in the mean."""

    def __init__(self):
        super().__init__()
        self.table1 = nn.EmbeddingBag(BUCKETS, DIM, mode="mean", padding_idx=0)
        self.table2 = nn.EmbeddingBag(BUCKETS, DIM, mode="mean", padding_idx=0)

    def forward(self, ids):
        if ids.ndim == 1:
            ids = ids.unsqueeze(1)
        return self.table1(hashed(ids, SEEDS[0])) + self.table2(hashed(ids, SEEDS[1]))


class MLP(nn.Module):
    def __init__(self, din):
        super().__init__()
        self.fc1 = nn.Linear(din, 16)
        self.fc2 = nn.Linear(16, OUT)

    def forward(self, x):
        return F.normalize(self.fc2(F.leaky_relu(self.fc1(x), 0.1)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_table = HashedBag()
        self.item_table = HashedBag()
        self.tag_table = nn.EmbeddingBag(TAGS, DIM, mode="mean", padding_idx=0)
        self.query_tower = MLP(2 * DIM)
        self.item_tower = MLP(2 * DIM)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, user, watched, item, tags):
        query = self.query_tower(torch.cat([self.user_table(user), self.item_table(watched)], dim=1))
        key = self.item_tower(torch.cat([self.item_table(item), self.tag_table(tags)], dim=1))
        return self.log_scale.clamp(max=np.log(100.0)).exp() * query @ key.T


def sampled_softmax(logits, item, weight, probability):
    logits = logits - torch.log(probability)[None]
    same = item[:, None] == item[None]
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, -1e9)
    loss = F.cross_entropy(logits, torch.arange(len(item)), reduction="none")
    return (loss * weight).sum() / weight.sum()


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


def main():
    net = TwoTower()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    tables = [p for n, p in net.named_parameters() if "table" in n]
    dense = [p for n, p in net.named_parameters() if "table" not in n]
    sparse_opt = torch.optim.Adagrad(tables, lr=0.1, initial_accumulator_value=0.01)
    dense_opt = torch.optim.SGD(dense, lr=0.05, momentum=0.9)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            user, watched, item, tags, weight, probability = (torch.from_numpy(a) for a in make_batch(step))
            loss = sampled_softmax(net(user, watched, item, tags), item, weight, probability)
            sparse_opt.zero_grad()
            dense_opt.zero_grad()
            loss.backward()
            sparse_opt.step()
            dense_opt.step()
            run.step()
            gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in net.parameters()))
            wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in net.parameters()))
            print(f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
