"""Programs that look at tensors while they are recorded, and the truth at each look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.session import Session
from tests.capture.torch.dump import DumpOnDisk
from tests.capture.torch.training import open_session
from tests.capture.torch.writes import Program

Moment = tuple[float, float, float, float]


class Probe(nn.Module):
    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.clone(tensor)


class Watched:
    """A session in which a program looks at tensors; the truth at each look is noted beside the record."""

    def __init__(self, dump_path: Path, level: str, **options: Any) -> None:
        self.dump_path = dump_path
        self.session: Session = open_session(dump_path, level=level, **options)
        self.probe = Probe()
        self.level = level
        self.truth: list[Moment] = []

    def run(self, program: Program) -> None:
        self.session.start(self.probe if self.level != "L1" else None)
        program(self.see)
        self.session.stop()
        self.session.step()

    def see(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            numbers = tensor.detach().clone().to(torch.float64).flatten()
            self.truth.append(
                (numbers.max().item(), numbers.min().item(), numbers.mean().item(), numbers.norm().item())
            )
        copy: torch.Tensor = self.probe(tensor)
        return copy

    def recorded(self) -> list[Moment]:
        (folder,) = (self.dump_path / "step0").iterdir()
        records = DumpOnDisk(folder).records
        stem = "Module.Probe.forward." if self.level == "L0" else "Torch.clone."
        names = [name for name in records if name.startswith(stem) and "backward" not in name]
        leaves = [records[name]["input_args"][0] for name in names]
        return [(leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) for leaf in leaves]


def check(watched: Watched, program: Program) -> None:
    watched.run(program)
    recorded = watched.recorded()
    assert len(recorded) == len(watched.truth) > 1
    for look, (candidate, reference) in enumerate(zip(recorded, watched.truth, strict=True)):
        assert candidate == pytest.approx(reference, rel=1e-5, abs=1e-6), f"look {look}"
