"""Meta-SGD (MAML with a learned step size for every parameter) on sinusoids, with plain autograd and Python loops."""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

INNER_STEPS = 2
SIZES = [(1, 16), (16, 16), (16, 1)]


def new_parameters():
    rng = np.random.default_rng(42)
    weights = {}
    for i, (a, b) in enumerate(SIZES):
        weights[f"w{i}"] = rng.normal(0, (2 / a) ** 0.5 * 0.7, (b, a))
        weights[f"b{i}"] = rng.normal(0, 0.1, (b,))
    weights["ln_w"] = 1 + rng.normal(0, 0.1, (16,))
    weights["ln_b"] = rng.normal(0, 0.1, (16,))
    rates = {k: 0.03 + 0.02 * rng.random(v.shape) for k, v in weights.items()}
    tensor = lambda v: torch.tensor(v, dtype=getattr(torch, os.environ.get("DTYPE", "float32")), requires_grad=True)
    return {k: tensor(v) for k, v in weights.items()}, {k: tensor(v) for k, v in rates.items()}


def network(x, w):
    h = torch.tanh(F.linear(x, w["w0"], w["b0"]))
    h = F.layer_norm(h, (16,), w["ln_w"], w["ln_b"])
    h = F.silu(F.linear(h, w["w1"], w["b1"]))
    return F.linear(h, w["w2"], w["b2"])


def sample_tasks(step, tasks=3, shots=5, queries=7):
    rng = np.random.default_rng(step + 500)
    amplitude, phase = rng.uniform(0.5, 3, tasks), rng.uniform(0, np.pi, tasks)
    out = []
    for a, p in zip(amplitude, phase):
        x = rng.uniform(-3, 3, (shots + queries, 1))
        y = a * np.sin(x + p)
        x, y = (torch.tensor(v, dtype=getattr(torch, os.environ.get("DTYPE", "float32"))) for v in (x, y))
        out.append((x[:shots], y[:shots], x[shots:], y[shots:]))
    return out


def adapt(weights, rates, x, y):
    fast = dict(weights)
    for _ in range(INNER_STEPS):
        loss = F.mse_loss(network(x, fast), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {k: fast[k] - rates[k] * g for k, g in zip(fast, grads)}
    return fast


def main(folder):
    weights, rates = new_parameters()
    everything = list(weights.values()) + list(rates.values())
    optimizer = torch.optim.Adam([
        {"params": list(weights.values()), "lr": 1e-3},
        {"params": list(rates.values()), "lr": 1e-4},
    ])
    debugger = PrecisionDebugger(dump_path=folder, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        tasks = sample_tasks(step)
        debugger.start()
        optimizer.zero_grad()
        losses = []
        for support_x, support_y, query_x, query_y in tasks:
            fast = adapt(weights, rates, support_x, support_y)
            losses.append(F.mse_loss(network(query_x, fast), query_y))
        meta_loss = torch.stack(losses).mean()
        meta_loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in everything) ** 0.5
        print(f"step {step} loss {meta_loss.item():.8f} grad {grad:.8f} params {sum(p.detach().double().abs().sum() for p in everything):.8f}")
        debugger.step()


if __name__ == "__main__":
    main(sys.argv[1])
