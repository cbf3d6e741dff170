"""Programs drawn at random: each step takes tensors that earlier ones left, by number, and does one thing to them.

A program is plain data, so that it can be run again, in another precision too, and shrinks to few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZE = 4
Step = tuple[str, int, int, float]
"""What is done, to which tensor, with which other one, by how much."""


class Scale(torch.autograd.Function):
    """A Function whose derivative is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y.cos(), x + y

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return first * y.cos() + second, second - first * x * y.sin()


class Model(nn.Module):
    """The parameters that programs use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE)
        self.table = nn.Parameter(torch.randn(SIZE, SIZE))
        self.register_buffer("memory", torch.zeros(SIZE, SIZE))


class Run:
    """A program while it runs: a pool of square matrices."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        generator = torch.Generator().manual_seed(3)
        data = torch.randn(SIZE, SIZE, generator=generator)
        self.pool: list[torch.Tensor] = [data.to(dtype), model.linear(data.to(dtype))]
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self.is_casting = False
        """Has anything been computed in a lower precision?"""

    def take(self, number: int) -> torch.Tensor:
        return self.pool[number % len(self.pool)]

    def add(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            assert tensor.shape == (SIZE, SIZE), tensor.shape
            self.pool.append(tensor)

    def write(self, number: int, change: Callable[[torch.Tensor], Any]) -> None:
        """In place, into memory of its own: autograd allows it not everywhere, and no two programs the same."""
        target = self.take(number).clone()
        change(target)
        self.add(target)

    def loss(self) -> torch.Tensor:
        floating = [tensor for tensor in self.pool if tensor.requires_grad]
        return torch.stack([tensor.to(self.dtype).sin().sum() for tensor in floating[-3:]]).sum()


def _views(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    first, second = x.chunk(2)
    run.add(torch.cat([second, first * k]))


def _halves(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    left, right = x.split(2, dim=1)
    run.add(torch.stack([left, right]).transpose(0, 1).reshape(SIZE, SIZE))


def _rows(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    rows = x.unbind(0)
    run.add(torch.stack([rows[2], rows[0] * k, rows[1], rows[3]]))


def _write_view(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    canvas = x.clone(memory_format=torch.contiguous_format)
    alias = canvas.view(-1)
    alias[2:9].mul_(k)
    canvas[:, 1] = y[0]
    canvas.T[2].add_(y[:, 3])
    run.add(canvas, alias.view(SIZE, SIZE))


def _write_advanced(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    canvas = x.clone()
    canvas[torch.tensor([0, 2])] += y[[1, 3]]
    canvas[canvas > 0.5] = k
    canvas[1:3, [0, 3]] = y[:2, :2]
    run.add(canvas)


def _out(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    result = torch.empty_like(x)
    with torch.no_grad():
        torch.add(x, y, alpha=k, out=result)
    run.add(result)


def _no_grad(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    with torch.no_grad():
        run.model.memory.mul_(0.5).add_(x.to(run.dtype), alpha=k)
    run.add(x + run.model.memory.to(x.dtype))


def _detach(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    alias = x.detach()
    run.add(alias * k, x * alias)


def _data(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    own = x * 1.5
    own.data.add_(k)
    run.add(own * y)


def _properties(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    z = torch.complex(x.to(run.dtype), y.to(run.dtype).mT)
    run.add(z.real * z.imag.T, z.imag + x.to(run.dtype).T)


def _dropout(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(F.dropout(x, 0.3), F.dropout(F.relu(y), 0.5))


def _noise(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(x + torch.randn_like(x) * k)


def _norm(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(run.model.norm(x.to(run.dtype)))


def _integers(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    order = (torch.arange(SIZE) * 3 + 1) % SIZE
    order[0] += 0
    counts = (x > 0).sum(1)
    run.add(x[:, order] * (counts % 3).to(x.dtype)[:, None])


def _masks(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    mask = x > k
    mask |= y < 0
    run.add(x.masked_fill(mask, k), torch.where(mask, x, y.to(x.dtype)))


def _casts(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.is_casting = True
    run.add(x.to(torch.bfloat16).to(run.dtype) * k, y.half().type_as(x))


def _autocast(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.is_casting = True
    with torch.autocast("cpu", torch.bfloat16):
        first = run.model.linear(x.to(run.dtype))
        with torch.autocast("cpu", enabled=False):
            second = run.model.linear(first.to(run.dtype))
        third = run.model.linear(second) + first
    run.add(third.to(run.dtype) * k)


def _function(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(*Scale.apply(x * k, y.to(x.dtype)))


def _checkpoint(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    def inside(value: torch.Tensor) -> torch.Tensor:
        return F.dropout(run.model.linear(value).tanh(), 0.2) * k

    run.add(checkpoint(inside, x.to(run.dtype), use_reentrant=False))


def _checkpoint_of_the_older_kind(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    given = x.to(run.dtype)
    if given.requires_grad:
        run.add(checkpoint(lambda value: (run.model.linear(value) * k).sin(), given, use_reentrant=True))


def _hook(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    hooked = x * 2
    if hooked.requires_grad:
        hooked.register_hook(lambda gradient: gradient * (1 + k))
    run.add(hooked.sin())


def _table(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(F.linear(x.to(run.dtype), run.model.table) * k, run.model.table[:, [1, 0, 3, 2]] + x.to(run.dtype))


def _expand(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    run.add(x[:, :1].expand(SIZE, SIZE) * y.to(x.dtype), x.sum(0, keepdim=True).expand_as(x) * k)


def _choose(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    values, places = x.topk(2, dim=1)
    run.add(torch.cat([values, x.gather(1, places)], 1), x.sort(0)[0])


def _backward(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    """A whole training step; what was computed before is left behind."""
    run.loss().backward()
    if k > 0:
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=k > 0.5)
    run.pool = [run.pool[0], run.model.linear(run.pool[0])]


def _backward_twice(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    value = (run.model.linear(run.pool[0]) * k).sin()
    total = value.sum()
    total.backward(retain_graph=True)
    value.backward(torch.full_like(value, 0.5))


def _grad(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    value = (run.model.table * k).tanh()
    (found,) = torch.autograd.grad(value.sum(), run.model.table)
    run.add(found + x.to(run.dtype))


def _penalty(run: Run, x: torch.Tensor, y: torch.Tensor, k: float) -> None:
    (found,) = torch.autograd.grad((run.model.table * k).tanh().sum(), run.model.table, create_graph=True)
    run.add(found * 2)


STEPS: dict[str, Callable[[Run, torch.Tensor, torch.Tensor, float], None]] = {
    "add": lambda run, x, y, k: run.add(x + y * k),
    "multiply": lambda run, x, y, k: run.add(x * y),
    "product": lambda run, x, y, k: run.add(x.to(run.dtype) @ y.to(run.dtype).T * 0.3),
    "transpose": lambda run, x, y, k: run.add(x.transpose(0, 1), x.t().contiguous()),
    "in place": lambda run, x, y, k: run.write(-1, lambda target: target.mul_(k).add_(y)),
    "views": _views,
    "halves": _halves,
    "rows": _rows,
    "write through a view": _write_view,
    "write by an index": _write_advanced,
    "out": _out,
    "no_grad": _no_grad,
    "detach": _detach,
    "data": _data,
    "properties": _properties,
    "dropout": _dropout,
    "noise": _noise,
    "norm": _norm,
    "integers": _integers,
    "masks": _masks,
    "casts": _casts,
    "autocast": _autocast,
    "function": _function,
    "checkpoint": _checkpoint,
    "older checkpoint": _checkpoint_of_the_older_kind,
    "hook": _hook,
    "table": _table,
    "expand": _expand,
    "choose": _choose,
    "backward": _backward,
    "backward twice": _backward_twice,
    "grad": _grad,
    "penalty": _penalty,
}
RANDOM = frozenset({"dropout", "noise", "checkpoint"})
"""They draw other numbers in another precision."""
CHANGING = frozenset({"hook"})
"""What they do to gradients is recorded, and in another precision not the same."""
ROUNDING = frozenset({"casts", "autocast"})
DECIDING = frozenset({"masks", "integers", "write by an index", "choose"})


def programs(names: Sequence[str] = tuple(STEPS), max_size: int = 8) -> st.SearchStrategy[list[Step]]:
    """Lists of steps."""
    amounts = st.sampled_from([-0.75, 0.25, 0.5, 1.25])
    step = st.tuples(st.sampled_from(sorted(names)), st.integers(0, 20), st.integers(0, 20), amounts)
    return st.lists(step, min_size=1, max_size=max_size)


def make_model(dtype: torch.dtype) -> Model:
    torch.manual_seed(0)
    return Model().to(dtype)


def run_program(model: Model, steps: Sequence[Step]) -> torch.Tensor:
    """All steps, a backward pass, and a look at what it leaves; the loss."""
    torch.manual_seed(1)
    run = Run(model, model.table.dtype)
    for name, first, second, amount in steps:
        x = run.take(first)
        STEPS[name](run, x, run.take(second).to(x.dtype), amount)
    loss = run.loss()
    loss.backward()
    for parameter in model.parameters():
        parameter.detach().clone()
    for buffer in model.buffers():
        buffer.clone()
    return loss.detach()
