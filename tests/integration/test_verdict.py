"""Real PyTorch programs, recorded and compared: what has no verdict, and what has one all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe import capture
from tensorprobe.compare.result import Comparison
from tensorprobe.pytorch import PrecisionDebugger
from tests.integration.test_alignment import MSPROBE_DUMPS, WIDTH, Model, Wrapper
from tests.interoperation.program import record_case

LEVELS = ("L0", "L1", "mix")


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.max_pool2d(F.relu(self.norm(self.stem(x))), 2).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.cells = nn.LSTM(6, 7, batch_first=True)
        self.head = nn.Linear(7, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.table(x))[0])


def sequence() -> torch.Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def image() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def record(folder: Path, model: nn.Module, data: torch.Tensor, level: str = "mix", **options: Any) -> Path:
    with capture(model, str(folder), level=level, **options):
        model(data).square().mean().backward()
    return folder


@pytest.mark.parametrize("level", LEVELS)
def test_two_programs_are_said_to_be_two(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    paths = {
        "attention": record(tmp_path / "attention", Model(), sequence(), level),
        "convolution": record(tmp_path / "convolution", Convolution(), image(), level),
        "recurrent": record(tmp_path / "recurrent", Recurrent(), torch.arange(8).view(2, 4) % 9, level),
    }
    for reference, candidate in (
        ("attention", "convolution"),
        ("convolution", "attention"),
        ("recurrent", "attention"),
    ):
        verdict = tensorprobe.compare(paths[reference], paths[candidate]).verdict
        assert verdict.kind == "unrelated", (reference, candidate, verdict)
        assert verdict.headline.startswith("These do not look like the same program: ")


def is_answered(result: Comparison) -> bool:
    return result.verdict.kind not in ("unrelated", "incomplete", "not compared")


@pytest.mark.parametrize("level", LEVELS)
def test_one_program_in_other_clothes_has_a_verdict(tmp_path: Path, level: str) -> None:
    smaller = Model()
    del smaller.layers[1]
    models = {
        "wrapped": Wrapper(Model()),
        "written out": Model(is_fused=False),
        "recomputed": Model(is_checkpointed=True),
        "without a layer": smaller,
        "deeper": Model(layers=12),
    }
    reference = record(tmp_path / "reference", Model(), sequence(), level)
    for name, model in models.items():
        result = tensorprobe.compare(reference, record(tmp_path / name, model, sequence(), level))
        assert is_answered(result), (name, result.verdict)
        assert bool(result) == (name in ("wrapped", "written out", "recomputed")), (name, result.verdict)


def test_another_batch_is_a_difference_of_one_program(tmp_path: Path) -> None:
    paths = record(tmp_path / "r", Model(), sequence()), record(tmp_path / "c", Model(), sequence()[:1])
    assert tensorprobe.compare(*paths).verdict.kind == "entered"


@pytest.mark.parametrize("case", ["mix-md5", "L0-tensor"])
def test_the_same_program_recorded_by_msprobe_has_a_verdict(tmp_path: Path, case: str) -> None:
    import tensorprobe.pytorch as tool

    PrecisionDebugger.reset()
    record_case(tool, tmp_path, case)
    PrecisionDebugger.reset()
    assert is_answered(tensorprobe.compare(tmp_path / case, MSPROBE_DUMPS / case))


def test_two_steps_of_one_run_are_said_to_be_that(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L1", step=[0, 2])
    for _ in range(3):
        debugger.start(model=model)
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    headline = tensorprobe.compare(tmp_path / "step0", tmp_path / "step2").verdict.headline
    assert headline.startswith("These are step 0 and step 2 of one run, not two runs")
    assert tensorprobe.compare(tmp_path / "step0", tmp_path / "step0").verdict.headline.startswith("The runs agree")


def test_a_lost_tensor_whose_record_contradicts_is_a_difference(tmp_path: Path) -> None:
    good, bad = (record(tmp_path / name, Model(), sequence(), task="tensor") for name in ("good", "bad"))
    rank = bad / "step0" / "rank"
    content = json.loads((rank / "dump.json").read_text())
    leaf = content["data"]["Functional.linear.3.forward"]["output"][0]
    (rank / "dump_tensor_data" / leaf["data_name"]).unlink()
    (rank / "dump.json").write_text(json.dumps(content))
    assert tensorprobe.compare(good, bad), "its statistics agree"
    leaf["Max"] = 99999
    (rank / "dump.json").write_text(json.dumps(content))
    verdict = tensorprobe.compare(good, bad).verdict
    assert verdict.kind == "source" and "Functional.linear.3.forward" in verdict.headline


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_what_has_no_numbers_is_no_loss(tmp_path: Path, task: str) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.empty(3, device="meta") + 1
            torch.empty(5).zero_()
            rows = torch.vmap(lambda row: row.sin() + 1)(x)
            return (
                torch.cat([rows, rows[:0]])
                * torch.sparse_coo_tensor([[0], [0]], [2.0], x.shape, check_invariants=True).to_dense()
            )

    data = torch.ones(3, 3, requires_grad=True)
    result = tensorprobe.compare(*(record(tmp_path / name, Odd(), data, "L1", task=task) for name in ("r", "c")))
    assert result, result.verdict
    assert result.ranks[0].coverage.values > result.ranks[0].coverage.compared_values
    assert result.ranks[0].coverage.value_share == 1.0
