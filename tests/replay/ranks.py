"""Dumps of several ranks, replayed together, and the values that come."""

from __future__ import annotations

from pathlib import Path

import torch

from tensorprobe.model.name import ParametersGradName, parse_name
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.joint import run_jointly
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, read_program
from tensorprobe.store.reader import open_dump


class Values(Onlooker):
    """The last single number, which is the loss, and the gradients of parameters by their names."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for tensor in tensors.values() if not operation.is_module else ():
            if tensor.dim() == 0:
                self.found["loss"] = tensor.detach().clone()

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        name = parse_name(record)
        if isinstance(name, ParametersGradName):
            self.found[f"{name.path}.{slot}".strip(".")] = gradient.clone()


def replay_ranks(folder: Path) -> list[tuple[Replay, dict[str, torch.Tensor]]]:
    """The only step of a dump, all ranks together: what each gives in float64."""
    replays, values = [], []
    for rank in open_dump(folder).ranks():
        values.append(Values())
        replays.append(Replay(read_program(rank), Precision("float64"), torch.device("cpu"), values[-1]))
    run_jointly(replays)
    return [(replay, value.found) for replay, value in zip(replays, values, strict=True)]


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """The norm of the difference, relative to that of the second."""
    return float((first - second).norm() / second.norm().clamp_min(1e-300))
