"""Tensor parallelism after Megatron-LM, all the ranks in one process (to debug the sharding):
column-parallel qkv and fc1, row-parallel projections, vocab-parallel embedding and cross entropy."""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

TP = 2
V, D, H, L, T = 36, 16, 4, 2, 10
HEAD = D // H
SCALE, CLIP = 256.0, 1.0


def all_reduce(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class VocabParallelCrossEntropy(torch.autograd.Function):
    """loss per token from the shards of the logits"""

    @staticmethod
    def forward(ctx, target, *shards):
        highest = torch.stack([s.amax(-1) for s in shards]).amax(0)
        per_rank = shards[0].shape[-1]
        exps, predicted, masks, locals_ = [], [], [], []
        for rank, shard in enumerate(shards):
            shifted = shard - highest.unsqueeze(-1)
            outside = (target < rank * per_rank) | (target >= (rank + 1) * per_rank)
            local = (target - rank * per_rank).masked_fill(outside, 0)
            picked = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
            predicted.append(picked.masked_fill(outside, 0.0))
            exps.append(shifted.exp())
            masks.append(outside)
            locals_.append(local)
        sum_exp = all_reduce([e.sum(-1) for e in exps])
        ctx.save_for_backward(sum_exp, *exps, *masks, *locals_)
        return sum_exp.log() - all_reduce(predicted)

    @staticmethod
    def backward(ctx, grad_output):
        sum_exp, *saved = ctx.saved_tensors
        grads = []
        for e, outside, local in zip(saved[:TP], saved[TP : 2 * TP], saved[2 * TP :]):
            g = e / sum_exp.unsqueeze(-1)
            g.scatter_add_(-1, local.unsqueeze(-1), (outside.to(g.dtype) - 1.0).unsqueeze(-1))
            grads.append(g * grad_output.unsqueeze(-1))
        return (None, *grads)


class ColumnParallel(nn.Module):
    def __init__(self, n_in, n_out, bias=True):
        super().__init__()
        self.weight = nn.ParameterList([torch.empty(n_out // TP, n_in) for _ in range(TP)])
        self.bias = nn.ParameterList([torch.empty(n_out // TP) for _ in range(TP)]) if bias else [None] * TP

    def forward(self, x):
        return [F.linear(x, w, b) for w, b in zip(self.weight, self.bias)]


class RowParallel(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.ParameterList([torch.empty(n_out, n_in // TP) for _ in range(TP)])
        self.bias = nn.Parameter(torch.empty(n_out))  # lives on every rank, added once

    def forward(self, xs):
        return all_reduce([F.linear(x, w) for x, w in zip(xs, self.weight)]) + self.bias


class ParallelLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = ColumnParallel(D, 3 * D, bias=False), RowParallel(D, D)
        self.fc1, self.fc2 = ColumnParallel(D, 4 * D), RowParallel(4 * D, D)

    def core_attention(self, qkv):
        n, t, _ = qkv.shape
        q, k, v = qkv.view(n, t, 3, H // TP, HEAD).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, -1)

    def forward(self, x):
        x = x + self.proj([self.core_attention(shard) for shard in self.qkv(self.ln1(x))])
        return x + self.fc2([F.gelu(h, approximate="tanh") for h in self.fc1(self.ln2(x))])


class ParallelGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.ParameterList([torch.empty(V // TP, D) for _ in range(TP)])
        self.position = nn.Parameter(torch.empty(T, D))
        self.layers = nn.ModuleList(ParallelLayer() for _ in range(L))
        self.ln_f = nn.LayerNorm(D)

    def embed(self, tokens):
        parts = []
        for rank, table in enumerate(self.word):
            local = tokens - rank * len(table)
            outside = (local < 0) | (local >= len(table))
            part = F.embedding(local.masked_fill(outside, 0), table)
            parts.append(part.masked_fill(outside.unsqueeze(-1), 0.0))
        return all_reduce(parts)

    def forward(self, tokens, targets):
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        x = self.ln_f(x)
        return VocabParallelCrossEntropy.apply(targets, *[F.linear(x, table) for table in self.word])


@torch.no_grad()
def load_dense(model, sd):
    def scatter(parameters, full, dim):
        for p, shard in zip(parameters, full.chunk(TP, dim)):
            p.copy_(shard)

    scatter(model.word, sd["word.weight"], 0)
    model.position.copy_(sd["position.weight"])
    model.ln_f.weight.copy_(sd["final_norm.weight"])
    model.ln_f.bias.copy_(sd["final_norm.bias"])
    for i, layer in enumerate(model.layers):
        get = lambda name: sd[f"layers.{i}.{name}"]
        for norm, name in ((layer.ln1, "input_norm"), (layer.ln2, "post_norm")):
            norm.weight.copy_(get(name + ".weight"))
            norm.bias.copy_(get(name + ".bias"))
        qkv = torch.cat([get(f"attention.{n}.weight") for n in ("query", "key", "value")])
        # a rank has its heads of q, then of k, then of v
        qkv = qkv.view(3, TP, -1, D).transpose(0, 1).reshape(3 * D, D)
        scatter(layer.qkv.weight, qkv, 0)
        scatter(layer.proj.weight, get("attention.dense.weight"), 1)
        layer.proj.bias.copy_(get("attention.dense.bias"))
        scatter(layer.fc1.weight, get("mlp.0.weight"), 0)
        scatter(layer.fc1.bias, get("mlp.0.bias"), 0)
        scatter(layer.fc2.weight, get("mlp.2.weight"), 1)
        layer.fc2.bias.copy_(get("mlp.2.bias"))


def data(step, micro=2):
    rng = np.random.default_rng(40 + step)
    for _ in range(micro):
        tokens = rng.integers(1, V, (3, T + 1))
        mask = np.arange(T)[None] < rng.integers(2, T + 1, 3)[:, None]
        tokens[:, 1:][~mask] = 0
        yield tuple(map(torch.from_numpy, (tokens[:, :-1], tokens[:, 1:], mask)))


def unscale(params):
    torch._foreach_mul_([p.grad for p in params], 1.0 / SCALE)


def clip(params):
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    factor = (CLIP / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(factor)
    return norm


def main():
    model = ParallelGPT()
    load_dense(model, torch.load(os.path.join(os.environ["WEIGHTS"], "dense.pt")))
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=1e-3)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        batches = list(data(step))
        probe.start(model)
        opt.zero_grad()
        all_tokens = torch.stack([mask.sum() for _, _, mask in batches]).sum()
        losses = []
        for tokens, targets, mask in batches:
            per_token = model(tokens, targets)
            loss = (per_token * mask).sum() / all_tokens
            (loss * SCALE).backward()
            losses.append(loss.detach())
        unscale(params)
        norm = clip(params)
        opt.step()
        probe.stop()
        size = torch.cat([p.detach().double().flatten() for p in params]).norm()
        print(f"step {step} loss {sum(losses).item():.8f} grad {norm.item():.8f} params {size:.8f}")
        probe.step()


if __name__ == "__main__":
    main()
