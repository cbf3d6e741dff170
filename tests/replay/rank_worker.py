"""One rank of the programs that tests replay together: each is run in float64 without a capture, and recorded in lower
precision from the same numbers.

Run by torchrun: `rank_worker.py FOLDER`. Dumps go to FOLDER/SCENARIO, what float64 gives to FOLDER/SCENARIO.rank{R}.pt:
the loss, or the last result, and the gradients of the parameters by their names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tensorprobe

Step = Callable[[], torch.Tensor]
Results = dict[str, torch.Tensor]


class Copy(torch.autograd.Function):
    """Into a tensor-parallel region, in the manner of Megatron."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """Out of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Scatter(torch.autograd.Function):
    """Of a tensor that all have, each takes its rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(dist.get_world_size())[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts)


class Gather(torch.autograd.Function):
    """The rows of all, before a column-parallel layer: sequence parallel."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        whole = x.new_empty((x.shape[0] * dist.get_world_size(), *x.shape[1:]))
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        own = gradient.new_empty((gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:]))
        dist.reduce_scatter_tensor(own, gradient.contiguous())
        return own


class Exchange(torch.autograd.Function):
    """Each row to the rank that has its expert, and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x.contiguous())
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(gradient)
        dist.all_to_all_single(result, gradient.contiguous())
        return result


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Numbers that bfloat16 has."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3).bfloat16()


class Parallel(nn.Module):
    """A projection, and an MLP of which each rank has a part of the hidden units."""

    def __init__(self, rank: int, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.count = count
        self.into = nn.Parameter(draw(0, 8, 8).to(dtype))
        self.up = nn.Parameter(draw(1, 32, 8).chunk(count)[rank].to(dtype))
        self.up_bias = nn.Parameter(draw(2, 32).chunk(count)[rank].to(dtype))
        self.down = nn.Parameter(draw(3, 5, 32).chunk(count, 1)[rank].to(dtype).clone())
        self.bias = nn.Parameter(draw(4, 5).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.into)
        x = Copy.apply(x) if self.count > 1 else x
        y = F.linear(F.gelu(F.linear(x, self.up, self.up_bias)), self.down)
        y = Reduce.apply(y) if self.count > 1 else y
        return y + self.bias


def make_parallel(rank: int, count: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    model, x, y = Parallel(rank, count, dtype), draw(5, 6, 8).to(dtype), torch.arange(6) % 5
    return model, lambda: F.cross_entropy(model(x).float() if dtype != torch.float64 else model(x), y)


class Sequence(nn.Module):
    """Rows of a sequence on each rank, gathered for a column-parallel layer, then exchanged."""

    def __init__(self, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.into = nn.Parameter(draw(0, 8, 8).to(dtype))
        self.up = nn.Parameter(draw(1, 12, 8).chunk(2)[rank].to(dtype))
        self.last = nn.Parameter(draw(3 + rank, 4, 6).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.tanh(F.linear(Scatter.apply(F.linear(x, self.into)), self.into))
        return F.linear(torch.sin(Exchange.apply(F.linear(Gather.apply(own), self.up))), self.last)


def make_sequence(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    model, x = Sequence(rank, dtype), draw(5, 8, 8).to(dtype)
    return model, lambda: model(x).pow(2).mean()


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.head = nn.Linear(8, 3)
        for number, parameter in enumerate(self.parameters()):
            parameter.data = draw(number, *parameter.shape).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def make_net(dtype: torch.dtype, seed: int = 9) -> tuple[nn.Module, Step]:
    model, x = Net(dtype), draw(seed, 4, 8).to(dtype)
    return model, lambda: model(x).pow(2).mean()


def make_ddp(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    model, x = nn.parallel.DistributedDataParallel(Net(dtype)), draw(9 + rank, 4, 8).to(dtype)
    return model, lambda: model(x).pow(2).mean()


def make_fsdp2(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    from torch.distributed._composable.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    model, x = Net(dtype), draw(9 + rank, 4, 8).to(dtype)
    fully_shard(model.down, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, lambda: model(x).pow(2).mean()


def make_dtensor(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model, step = make_net(dtype)
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, step


def make_collectives(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    """Every collective once, each with what the one before gave."""
    x = draw(20 + rank, 4, 3).to(dtype)
    everyone = dist.new_group([0, 1])

    def step() -> torch.Tensor:
        y = torch.tanh(x * 3)
        parts = [torch.empty_like(y) for _ in range(2)]
        dist.all_gather(parts, y)
        own = torch.empty_like(y)
        dist.reduce_scatter_tensor(own, (torch.cat(parts) / 3).contiguous())
        own = own * 1.7 + rank
        dist.broadcast(own, 1, group=everyone)
        sent = own * (rank + 1)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        from_other = torch.zeros_like(got)
        if rank:
            dist.recv(from_other, 0)
            dist.send(got.exp(), 0)
        else:
            dist.send(got.exp(), 1)
            dist.recv(from_other, 1)
        first, second = from_other / 7, from_other + got
        one, two = dist.all_reduce(first, dist.ReduceOp.MAX, async_op=True), dist.all_reduce(second, async_op=True)
        for work in (two, one) if rank else (one, two):  # waited for in another order than on the other rank
            work.wait()
        pieces = [first * 2, second / 3] if rank == 0 else None
        dist.scatter(got, pieces, 0)
        gathered = [torch.empty_like(got) for _ in range(2)] if rank == 1 else None
        dist.gather(got.sin(), gathered, 1)
        total = torch.stack(gathered).sum(0) if gathered else got
        dist.reduce(total, 0)
        total = total if rank == 0 else got
        mean = functional.all_reduce(total, "avg", dist.group.WORLD) + 1
        whole = functional.all_gather_tensor(mean * (rank + 1), 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(whole / 3, "sum", 0, dist.group.WORLD).sum()

    return nn.Module(), step


def make_disorder(rank: int, dtype: torch.dtype) -> tuple[nn.Module, Step]:
    """A rank that sums what the other one takes the largest of; gloo does not mind."""

    def step() -> torch.Tensor:
        first, second = torch.ones(4) * (rank + 1), torch.ones(4) * 3
        dist.all_reduce(first)
        dist.all_reduce(second, dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)
        return (first + second).sum()

    return nn.Module(), step


SCENARIOS: dict[str, tuple[torch.dtype, Callable[[int, torch.dtype], tuple[nn.Module, Step]]]] = {
    "parallel": (torch.bfloat16, lambda rank, dtype: make_parallel(rank, 2, dtype)),
    "sequence": (torch.bfloat16, make_sequence),
    "collectives": (torch.float32, make_collectives),
    "ddp": (torch.bfloat16, make_ddp),
    "fsdp2": (torch.bfloat16, make_fsdp2),
    "dtensor": (torch.bfloat16, make_dtensor),
    "disorder": (torch.float32, make_disorder),
}


def run(model: nn.Module, step: Step) -> Results:
    loss = step()
    if loss.requires_grad:
        loss.backward()
    results = {"loss": loss.detach().clone()}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is not None:
            results[name.removeprefix("module.")] = getattr(gradient, "_local_tensor", gradient).detach().clone()
    return results


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, (dtype, make) in SCENARIOS.items():
        torch.save(run(*make(rank, torch.float64)), folder / f"{name}.rank{rank}.pt")
        model, step = make(rank, dtype)
        with tensorprobe.capture(model, folder / name, level="mix", task="tensor") as recording:
            run(model, step)
            recording.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
