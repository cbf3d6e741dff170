"""One rank of the distributed programs of the tests: each is trained without and with capture, and must end alike.

Run by torchrun: `distributed_worker.py FOLDER SCENARIO…`. Where a scenario is poisoned, memory that nobody has written
to holds NaN. Dumps go to FOLDER/SCENARIO/LEVEL, and of one rank only to FOLDER/SCENARIO/one; what is not bit for bit
the same to FOLDER/SCENARIO.rank{R}.json, and what was observed without capture to FOLDER/SCENARIO.rank{R}.pt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tensorprobe.capture.context import make_session
from tensorprobe.capture.session import Session
from tensorprobe.config import load_config

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a file
from tests.capture.torch.poison import poisoned
from tests.length import IS_LONG

STEPS = 2
Observed = dict[str, torch.Tensor]
Train = Callable[[Callable[[Any], Any]], Observed]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.register_buffer("scale", torch.ones(1))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


def make_model() -> Net:
    torch.manual_seed(7)
    return Net()


def make_batches(differ_by_rank: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + (dist.get_rank() if differ_by_rank else 0))
    return [torch.randn(4, 8, generator=generator) for _ in range(STEPS)]


def local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor).detach().clone()


def train(model: nn.Module, batches: list[torch.Tensor], around: Callable[[Any], Any], watched: Any = None) -> Observed:
    """SGD that is written by hand, so that no optimizer hook tells that the weights have changed."""
    observed: Observed = {}
    parameters = list(model.named_parameters())  # FSDP2 has others in the modules for a while
    for step, batch in enumerate(batches):
        with around(model):
            for micro_batch in (batch, batch * 2):
                loss = model(micro_batch).pow(2).mean()
                loss.backward()
            with torch.no_grad():
                model(batch)  # the weights are known when they change
                for name, parameter in parameters:
                    if parameter.grad is not None:
                        observed[f"gradient {step} {name}"] = local(parameter.grad)
                        parameter.add_(parameter.grad, alpha=-0.1)
                        parameter.grad = None
            observed[f"loss {step}"] = local(loss)
            observed[f"loss after {step}"] = local(model(batch).pow(2).mean())
    for name, tensor in model.state_dict().items():
        observed[f"weight {name}"] = local(tensor)
    observed["generator"] = torch.get_rng_state()
    return observed


def train_ddp(around: Callable[[Any], Any]) -> Observed:
    return train(nn.parallel.DistributedDataParallel(make_model()), make_batches(), around)


def train_ddp_bucket_view(around: Callable[[Any], Any]) -> Observed:
    model = nn.parallel.DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    return train(model, make_batches(), around)


def train_fsdp1(around: Callable[[Any], Any]) -> Observed:
    model = make_model()
    for index, block in enumerate(model.blocks):
        model.blocks[index] = FullyShardedDataParallel(block, use_orig_params=True, device_id=torch.device("cpu"))
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    return train(wrapped, make_batches(), around)


def train_fsdp1_flat(around: Callable[[Any], Any]) -> Observed:
    return train(FullyShardedDataParallel(make_model(), device_id=torch.device("cpu")), make_batches(), around)


def shard_fully(model: Net, mesh: Any) -> Net:
    from torch.distributed._composable.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_fsdp2(around: Callable[[Any], Any]) -> Observed:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    return train(shard_fully(make_model(), mesh), make_batches(), around)


def train_fsdp2_poisoned(around: Callable[[Any], Any]) -> Observed:
    with poisoned():
        return train_fsdp2(around)


def split_blocks(model: Net, mesh: Any) -> Net:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def train_tensor_parallel(around: Callable[[Any], Any]) -> Observed:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return train(split_blocks(make_model(), mesh), make_batches(differ_by_rank=False), around)


def train_two_dimensions(around: Callable[[Any], Any]) -> Observed:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp"))
    return train(shard_fully(split_blocks(make_model(), mesh["tp"]), mesh["data"]), make_batches(False), around)


def train_pipeline(around: Callable[[Any], Any]) -> Observed:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole = make_model()
    rank = dist.get_rank()
    part = nn.Sequential(whole.blocks[0]) if rank == 0 else nn.Sequential(whole.blocks[1], whole.head)
    observed: Observed = {}
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda output, target: (output - target).pow(2).mean())
    for step, batch in enumerate(make_batches(differ_by_rank=False)):
        losses: list[torch.Tensor] = []
        with around(part):
            if rank == 0:
                schedule.step(batch)
            else:
                schedule.step(target=torch.zeros(4, 3), losses=losses)
            with torch.no_grad():
                for name, parameter in part.named_parameters():
                    observed[f"gradient {step} {name}"] = local(parameter.grad)
                    parameter.add_(parameter.grad, alpha=-0.1)
                    parameter.grad = None
        observed.update({f"loss {step} {index}": local(loss) for index, loss in enumerate(losses)})
    observed.update({f"weight {name}": local(tensor) for name, tensor in part.state_dict().items()})
    return observed


def train_plain(around: Callable[[Any], Any]) -> Observed:
    """The same model in each process on its own, to compare names with."""
    return train(make_model(), make_batches(), around)


SCENARIOS: dict[str, Train] = {
    "plain": train_plain,
    "ddp": train_ddp,
    "ddp_bucket_view": train_ddp_bucket_view,
    "fsdp1": train_fsdp1,
    "fsdp1_flat": train_fsdp1_flat,
    "fsdp2": train_fsdp2,
    "fsdp2_poisoned": train_fsdp2_poisoned,
    "tensor_parallel": train_tensor_parallel,
    "two_dimensions": train_two_dimensions,
    "pipeline": train_pipeline,
}


CAPTURES: dict[str, dict[str, Any]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix", "task": "tensor"},
    "one": {"level": "mix", "task": "tensor", "rank": [0]},  # a capture that communicates would wait for ever
}


STOPPED_BY_NAN: dict[str, dict[str, Any]] = {
    "stop": {"level": "mix", "on_nonfinite": "stop"},
    "first": {"level": "mix", "task": "tensor"},
    "second": {"level": "mix", "task": "tensor"},
}


@contextmanager
def nothing(_: Any) -> Iterator[None]:
    yield


def make_recording(session: Session) -> Callable[[Any], Any]:
    @contextmanager
    def recorded(model: Any) -> Iterator[None]:
        session.start(model)
        yield
        session.stop()
        session.step()

    return recorded


def difference(reference: Observed, candidate: Observed) -> list[str]:
    if reference.keys() != candidate.keys():
        return ["the names"]
    return [key for key in reference if not torch.equal(reference[key], candidate[key])]


def choose_captures(scenario: str) -> dict[str, dict[str, Any]]:
    """The short form leaves out what other scenarios show at that level."""
    if scenario.endswith("poisoned"):
        return STOPPED_BY_NAN
    left_out = () if IS_LONG else {"plain": ("L1",), "fsdp1_flat": ("L1",), "two_dimensions": ("L1",)}.get(scenario, ())
    return {name: options for name, options in CAPTURES.items() if name not in left_out}


def main() -> None:
    folder, scenarios = Path(sys.argv[1]), sys.argv[2:]
    dist.init_process_group("gloo")
    for scenario in scenarios:
        reference = SCENARIOS[scenario](nothing)
        changed = {}
        for name, options in choose_captures(scenario).items():
            session = make_session(load_config(None, dump_path=folder / scenario / name, **options), "torch")
            candidate = SCENARIOS[scenario](make_recording(session))
            session.close()
            changed[name] = difference(reference, candidate)
        (folder / f"{scenario}.rank{dist.get_rank()}.json").write_text(json.dumps(changed))
        torch.save(reference, folder / f"{scenario}.rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
