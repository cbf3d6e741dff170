"""One training step of the model in each layout, right and with a mistake, as the rank of a process group makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.compare.layout.model import BATCH, Model, Norm, Plan, draw, read_batch
from tests.compare.layout.parallel import faulty_gelu
from tests.replay.rank_worker import Net

Case = tuple[nn.Module, Callable[[], object]]
RATE = 0.1
PLAIN = Plan()


def make_whole(
    plan: Plan = PLAIN, *, has_experts: bool = False, dtype: torch.dtype = torch.float32, samples: int = BATCH
) -> Case:
    """The reference, in one process."""
    model = Model(plan, has_experts).to(dtype)
    tokens, labels = read_batch(samples)

    def step() -> None:
        torch.manual_seed(5)
        model(tokens, labels).float().mean().backward()

    return model, step


def refine(model: nn.Module) -> nn.Module:
    """Weights that bfloat16 does not have."""
    for parameter in model.parameters():
        parameter.data *= 1.0007
    return model


def make_fine() -> Case:
    """The reference in float32, of which others have a copy in bfloat16."""
    model, step = make_whole()
    return refine(model), step


def make_updated() -> Case:
    """The reference with an update of its weights."""
    model, step = make_whole()

    def update() -> None:
        step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=RATE)

    return model, update


def make_net() -> Case:
    model, x = Net(torch.float32), draw(9, 4, 8)
    return model, lambda: model(x).pow(2).mean().backward()


# -- tensor parallel ---------------------------------------------------------------------------------------------------


def make_tensor(
    fault: str = "",
    *,
    dtype: torch.dtype = torch.float32,
    cuts_sequence: bool = False,
    is_turned: bool = False,
    is_narrow: bool = False,
) -> Case:
    """`is_turned`: the last rank has the first parts. `is_narrow`: finer weights, rounded."""
    rank, count = dist.get_rank(), dist.get_world_size()
    dropout = 0.2 if fault == "seed" else 0.0
    place = count - 1 - rank if is_turned else rank
    plan = Plan((place, count, dist.group.WORLD), cuts_sequence=cuts_sequence, fault=fault, dropout=dropout)
    if fault == "few":
        pairs = [dist.new_group([first, first + 1]) for first in range(0, count, 2)]
        plan = replace(plan, few=pairs[rank // 2])
    model = (refine(Model(plan)) if is_narrow else Model(plan)).to(dtype)
    tokens, labels = read_batch()
    if fault == "stale" and rank == count - 1:
        model.block.after.weight.data *= 0.99

    def step() -> None:
        torch.manual_seed(5 + (rank == 1 and fault == "seed"))
        with faulty_gelu(fault == "kernel" and rank == 1):
            model(tokens, labels).float().mean().backward()
        if cuts_sequence:
            reduce_gradients(find_sequence_parameters(model, fault), dist.group.WORLD)

    return model, step


def find_sequence_parameters(model: nn.Module, fault: str) -> list[nn.Parameter]:
    """What is used on a part of the sequence only."""
    found = [module.weight for module in model.modules() if isinstance(module, Norm)]
    found += [parameter for name, parameter in model.named_parameters() if name.endswith("mlp.bias")]
    return found[1:] if fault == "norm" else found


def reduce_gradients(parameters: Iterable[nn.Parameter], group: object, divisor: float = 1.0) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        if divisor != 1:
            parameter.grad /= divisor


def make_distributed(fault: str = "") -> Case:
    """torch's own distributed tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model, x = Net(torch.float32), draw(9, 4, 8)
    if not fault:
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model, lambda: model(x).pow(2).mean().backward()
    rank, count = dist.get_rank(), dist.get_world_size()
    for parameter, dim in ((model.up.weight, 0), (model.up.bias, 0), (model.down.weight, 1)):
        parameter.data = parameter.data.chunk(count, dim)[rank].clone()

    def step() -> None:
        entering = DTensor.from_local(model.norm(x), mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        hidden = torch.relu(F.linear(entering, model.up.weight, model.up.bias))
        part = F.linear(hidden, model.down.weight)
        placement = Replicate() if fault == "partial" else Partial()
        whole = DTensor.from_local(part, mesh, [placement]).redistribute(mesh, [Replicate()]).to_local()
        model.head(x + whole + model.down.bias).pow(2).mean().backward()

    return model, step


# -- data parallel -----------------------------------------------------------------------------------------------------


def read_part(dim: int, place: int, count: int, samples: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = (part.chunk(count, dim)[place].contiguous() for part in read_batch(samples))
    return tokens, labels


def make_data(fault: str = "", *, is_turned: bool = False) -> Case:
    rank, count = dist.get_rank(), dist.get_world_size()
    model = Model(Plan())
    place = count - 1 - rank if is_turned else rank
    tokens, labels = read_part(1, 0 if fault == "data" else place, count)

    def step() -> None:
        model(tokens, labels).mean().backward()
        reduce_gradients(model.parameters(), dist.group.WORLD, count * (count if fault == "twice" else 1))

    return model, step


def make_wrapped(fault: str = "") -> Case:
    rank, count = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(Model(Plan()))
    if fault == "stale" and rank == count - 1:
        model.module.block.mlp.up.data *= 1.01
    tokens, labels = read_part(1, rank, count)
    return model, lambda: model(tokens, labels).mean().backward()


def make_sharded(fault: str = "") -> Case:
    from torch.distributed._composable.fsdp import fully_shard

    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("data",))
    model = Model(Plan())
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    tokens, labels = read_part(1, 0 if fault == "data" else rank, count)

    def step() -> None:
        model(tokens, labels).mean().backward()
        if fault == "half":
            for parameter in model.parameters():
                parameter.grad /= count

    return model, step


def make_zero() -> Case:
    """Each rank updates its part of the weights."""
    rank, count = dist.get_rank(), dist.get_world_size()
    model = Model(Plan())
    tokens, labels = read_part(1, rank, count)

    def step() -> None:
        model(tokens, labels).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                gradient = parameter.grad.flatten()
                own = gradient.new_empty(gradient.numel() // count)
                dist.reduce_scatter_tensor(own, gradient)
                part = parameter.flatten().chunk(count)[rank] - RATE * (own / count)
                whole = torch.empty_like(gradient)
                dist.all_gather_into_tensor(whole, part.contiguous())
                parameter.copy_(whole.view_as(parameter))

    return model, step


def make_accumulated(fault: str = "") -> Case:
    """Two micro-batches on each rank."""
    rank, count = dist.get_rank(), dist.get_world_size()
    model = Model(Plan())
    tokens, labels = read_part(1, rank, count)

    def step() -> None:
        for number in range(2):
            own = tokens[:, number : number + 1], labels[:, number : number + 1]
            loss = model(*own).mean()
            (loss if fault == "scale" else loss / 2).backward()
        reduce_gradients(model.parameters(), dist.group.WORLD, count)

    return model, step


# -- context, experts, pipeline ----------------------------------------------------------------------------------------


def make_context(fault: str = "") -> Case:
    rank, count = dist.get_rank(), dist.get_world_size()
    model = Model(Plan(context=(rank, count, dist.group.WORLD), fault=fault))
    tokens, labels = read_part(0, rank, count)

    def step() -> None:
        model(tokens, labels).mean().backward()
        reduce_gradients(model.parameters(), dist.group.WORLD, count)

    return model, step


def make_experts(fault: str = "") -> Case:
    rank, count = dist.get_rank(), dist.get_world_size()
    model = Model(Plan(expert=(rank, count), fault=fault), has_experts=True)
    tokens, labels = read_part(1, rank, count)

    def step() -> None:
        model(tokens, labels).mean().backward()
        for name, parameter in model.named_parameters():
            if name.endswith(("mlp.up", "mlp.down")):
                parameter.grad /= count
            else:
                reduce_gradients([parameter], dist.group.WORLD, count)

    return model, step


def make_pipeline(fault: str = "") -> Case:
    """Two stages, two micro-batches: all forwards, then all backwards."""
    rank = dist.get_rank()
    model = Model(Plan(), stages=(rank,))
    parts = [read_part(1, number, 2) for number in range(2)]

    def first() -> None:
        results = []
        for tokens, _ in parts:
            results.append(model(tokens))
            dist.send(results[-1].detach(), 1)
        for result in results:
            gradient = torch.empty_like(result)
            dist.recv(gradient, 1)
            result.backward(gradient)

    def second() -> None:
        taken, losses = [], []
        for number in range(2):
            x = torch.empty(8, 2, 16)
            dist.recv(x, 0)
            taken.append(x.requires_grad_())
            labels = parts[1 - number if fault == "micro" else number][1]
            losses.append(model(x, labels).mean() / 2)
        for x, loss in zip(taken, losses, strict=True):
            loss.backward()
            dist.send(x.grad, 0)

    return model, second if rank else first


RIGHT: dict[str, Callable[[], Case]] = {
    "tp": make_tensor,
    "tp_bfloat16": lambda: make_tensor(dtype=torch.bfloat16),
    "tp_narrow": lambda: make_tensor(dtype=torch.bfloat16, is_narrow=True),
    "sp": lambda: make_tensor(cuts_sequence=True),
    "dtensor": make_distributed,
    "dtensor_from_parts": lambda: make_distributed("none"),
    "tp_turned": lambda: make_tensor(is_turned=True),
    "dp": make_data,
    "dp_turned": lambda: make_data(is_turned=True),
    "ddp": make_wrapped,
    "ddp_small": make_wrapped,
    "pp_small": make_pipeline,
    "fsdp2": make_sharded,
    "fsdp2_l1": make_sharded,
    "fsdp2_small": make_sharded,
    "zero": make_zero,
    "accumulation": make_accumulated,
    "cp": make_context,
    "ep": make_experts,
    "pp": make_pipeline,
}
WRONG: dict[str, Callable[[], Case]] = {
    "tp.no_reduce": lambda: make_tensor("no reduce"),
    "tp.no_reduce_bfloat16": lambda: make_tensor("no reduce", dtype=torch.bfloat16),
    "tp_narrow.no_reduce": lambda: make_tensor("no reduce", dtype=torch.bfloat16, is_narrow=True),
    "tp_narrow.stale": lambda: make_tensor("stale", dtype=torch.bfloat16, is_narrow=True),
    "tp.no_copy": lambda: make_tensor("no copy"),
    "tp.bias": lambda: make_tensor("bias"),
    "tp.offset": lambda: make_tensor("offset"),
    "tp.seed": lambda: make_tensor("seed"),
    "tp.stale": lambda: make_tensor("stale"),
    "tp.kernel": lambda: make_tensor("kernel"),
    "sp.norm": lambda: make_tensor("norm", cuts_sequence=True),
    "dtensor.partial": lambda: make_distributed("partial"),
    "tp_turned.no_reduce": lambda: make_tensor("no reduce", is_turned=True),
    "dp.twice": lambda: make_data("twice"),
    "dp.data": lambda: make_data("data"),
    "fsdp2.half": lambda: make_sharded("half"),
    "fsdp2_l1.half": lambda: make_sharded("half"),
    "fsdp2_l1.data": lambda: make_sharded("data"),
    "ddp.stale": lambda: make_wrapped("stale"),
    "accumulation.scale": lambda: make_accumulated("scale"),
    "cp.rotary": lambda: make_context("rotary"),
    "ep.expert": lambda: make_experts("expert"),
    "pp.micro": lambda: make_pipeline("micro"),
}
SHORT_RIGHT = ("dtensor", "tp_narrow", "tp_bfloat16", "fsdp2_small", "fsdp2", "cp", "ddp_small", "ep", "pp")
SHORT_WRONG = (
    *("tp.no_reduce_bfloat16", "tp.offset", "tp.stale", "dp.twice", "accumulation.scale"),
    *("cp.rotary", "ep.expert", "pp.micro", "fsdp2.half", "fsdp2_l1.half", "tp_narrow.stale", "tp.kernel"),
)
LONG_RIGHT = tuple(name for name in RIGHT if name not in SHORT_RIGHT)
LONG_WRONG = tuple(name for name in WRONG if name not in SHORT_WRONG)
STATISTICS = ":statistics"
"""Behind the name of a case: recorded without tensors."""
STATISTICS_RIGHT = ("tp", "fsdp2", "ep", "pp")
STATISTICS_WRONG = ("tp.no_reduce", "tp.stale", "tp.no_copy", "accumulation.scale", "tp.seed")
IN_SHORT = (
    *("dtensor", "tp_narrow", "tp_bfloat16", "fsdp2_small", "fsdp2", "cp", "ddp_small", "ep"),
    *("tp.no_reduce_bfloat16", "tp.stale", "accumulation.scale", "cp.rotary", "ep.expert", "fsdp2.half"),
    "tp_narrow.stale",
    *(name + STATISTICS for name in ("tp", "fsdp2", "ep", "tp.no_reduce", "tp.no_copy", "tp.seed")),
)
"""What tests of the short form ask for; others are recorded one by one if they are asked for."""
REFERENCES: dict[str, Callable[[], Case]] = {
    "whole": make_whole,
    "bfloat16": lambda: make_whole(dtype=torch.bfloat16),
    "dropout": lambda: make_whole(Plan(dropout=0.2)),
    "experts": lambda: make_whole(has_experts=True),
    "updated": make_updated,
    "fine": make_fine,
    "net": make_net,
}


SMALL = ("ddp_small", "pp_small", "fsdp2_small")
"""Recorded at level L1 with task `replay`."""
CALLS_ONLY = "fsdp2_l1"
"""Recorded at level L1, with tensors."""


def find_reference(case: str) -> str:
    """The name of the whole that a case is held against."""
    if "bfloat16" in case:
        return "bfloat16"
    for begin, reference in (
        ("dtensor", "net"),
        ("tp_narrow", "fine"),
        ("ep", "experts"),
        ("zero", "updated"),
        ("tp.seed", "dropout"),
    ):
        if case.startswith(begin):
            return reference
    return "whole"
