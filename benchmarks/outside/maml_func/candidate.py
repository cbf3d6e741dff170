"""Meta-SGD with torch.func: functional_call for the fast weights, grad for the inner loop, vmap over the tasks."""
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from tensorprobe.pytorch import PrecisionDebugger

DTYPE = getattr(torch, os.environ.get("DTYPE", "float32"))


class Norm(nn.LayerNorm):
    """LayerNorm in primitive operations"""

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * self.weight + self.bias


class Regressor(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.norm = Norm(width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        h = self.norm(self.enter(x).tanh())
        return self.leave(nn.functional.silu(self.middle(h)))


NAMES = {"w0": "enter.weight", "b0": "enter.bias", "w1": "middle.weight", "b1": "middle.bias", "w2": "leave.weight",
         "b2": "leave.bias", "ln_w": "norm.weight", "ln_b": "norm.bias"}


def build():
    """the numbers of the old script, in its order"""
    rng = np.random.default_rng(42)
    old = {}
    for i, (a, b) in enumerate([(1, 16), (16, 16), (16, 1)]):
        old[f"w{i}"] = rng.normal(0, (2 / a) ** 0.5 * 0.7, (b, a))
        old[f"b{i}"] = rng.normal(0, 0.1, (b,))
    old["ln_w"] = 1 + rng.normal(0, 0.1, (16,))
    old["ln_b"] = rng.normal(0, 0.1, (16,))
    rates = {NAMES[k]: torch.tensor(0.03 + 0.02 * rng.random(v.shape), dtype=DTYPE, requires_grad=True) for k, v in old.items()}
    model = Regressor().to(DTYPE)
    model.load_state_dict({NAMES[k]: torch.tensor(v) for k, v in old.items()})
    return model, rates


class MetaLearner:
    def __init__(self, model, rates, inner_steps=2):
        self.model, self.rates, self.inner_steps = model, rates, inner_steps

    def loss(self, params, x, y):
        prediction = functional_call(self.model, params, (x,))
        return (prediction - y).square().mean()

    def task_loss(self, params, rates, xs, ys, xq, yq):
        fast = params
        for _ in range(self.inner_steps):
            g = grad(self.loss)(fast, xs, ys)
            fast = {k: fast[k] - rates[k] * g[k] for k in fast}
        return self.loss(fast, xq, yq)

    def __call__(self, batch):
        params = dict(self.model.named_parameters())
        per_task = vmap(self.task_loss, in_dims=(None, None, 0, 0, 0, 0))(params, self.rates, *batch)
        return per_task.mean()


def tasks(step, n=3, shots=5, queries=7):
    rng = np.random.default_rng(step + 500)
    amplitude = rng.uniform(0.5, 3, n)
    phase = rng.uniform(0, np.pi, n)
    x = rng.uniform(-3, 3, (n, shots + queries, 1))
    y = amplitude[:, None, None] * np.sin(x + phase[:, None, None])
    x, y = torch.tensor(x, dtype=DTYPE), torch.tensor(y, dtype=DTYPE)
    return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


if __name__ == "__main__":
    model, rates = build()
    learner = MetaLearner(model, rates)
    adam = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-3}, {"params": rates.values(), "lr": 1e-4}])
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        batch = tasks(step)
        debugger.start(model)
        adam.zero_grad()
        loss = learner(batch)
        loss.backward()
        adam.step()
        debugger.stop()
        everything = [*model.parameters(), *rates.values()]
        norm = sum(p.grad.double().norm() ** 2 for p in everything) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {norm:.8f} params {sum(p.detach().double().abs().sum() for p in everything):.8f}")
        debugger.step()
