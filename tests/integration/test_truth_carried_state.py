"""Several steps, where a weight has its rows in another order and a result is kept for the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.pytorch import PrecisionDebugger

WIDTH = 16


class Network(nn.Module):
    """Gates and values of one layer, in halves or in pairs. What a step gives is added to what the next one takes."""

    def __init__(self, *, in_pairs: bool, forgets: bool = False) -> None:
        super().__init__()
        self.gated, self.out = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.kept = torch.zeros(WIDTH, 4)
        self.in_pairs, self.forgets = in_pairs, forgets

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.kept.to(x.dtype).t()
        gated = self.gated(x)
        if self.in_pairs:
            gate, value = gated.unflatten(-1, (WIDTH, 2)).unbind(-1)
        else:
            gate, value = gated.chunk(2, dim=-1)
        y = self.out(torch.tanh(gate) * value)
        y = y * y.square().sum(-1, keepdim=True).rsqrt() if self.in_pairs else y / y.norm(dim=-1, keepdim=True)
        self.kept = y.detach().t() * (0.5 if self.forgets else 1.0)
        return y


def record(folder: Path, *, in_pairs: bool = False, forgets: bool = False, dtype: torch.dtype = torch.bfloat16) -> Path:
    torch.manual_seed(0)
    network = Network(in_pairs=in_pairs, forgets=forgets)
    if in_pairs:
        order = torch.arange(2 * WIDTH).view(2, WIDTH).t().reshape(-1)
        network.gated.weight.data = network.gated.weight.data[order].contiguous()
    network.to(dtype)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task="tensor")
    for step in range(3):
        x, wanted = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        debugger.start(network)
        (network(x) - wanted).square().sum().backward()
        debugger.stop()
        optimizer.step()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def compare(folder: Path, *, forgets: bool = False, dtype: torch.dtype = torch.bfloat16) -> Comparison:
    reference = record(folder / "reference", dtype=dtype)
    candidate = record(folder / "candidate", in_pairs=True, forgets=forgets, dtype=dtype)
    return tensorprobe.compare(reference, candidate)


def test_one_program_in_two_ways_agrees_in_all_steps(tmp_path: Path) -> None:
    result = compare(tmp_path)
    assert [rank.verdict.kind for rank in result] == ["agree"] * 3, result.verdict.headline
    assert any("gated.weight" in line and "a different order" in line for line in result.verdict.evidence)


def test_what_is_kept_differs_by_rounding_alone_and_all_else_is_the_same_to_the_last_digits(tmp_path: Path) -> None:
    ranks = list(compare(tmp_path, dtype=torch.float32))
    assert len(ranks) == 3
    assert all("have the same value exactly" in rank.verdict.headline for rank in ranks)


@pytest.mark.parametrize("step", [1, 2])
def test_a_state_that_is_kept_otherwise_is_no_rounding(tmp_path: Path, step: int) -> None:
    ranks = list(compare(tmp_path, forgets=True))
    assert ranks[step].verdict.kind != "agree"
