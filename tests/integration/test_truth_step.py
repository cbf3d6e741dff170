"""Several steps with an optimizer, written in different ways: by what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.pytorch import PrecisionDebugger
from tests.integration.test_truth_verdict import Block, Model, carry
from tests.length import IS_LONG

STEPS = 3 if IS_LONG else 2


def record(folder: Path, how: str = "eager", dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """A few steps. `fault`: what is wrong from step 1 on; `decay`: the weight decay of AdamW; `update`: its setting."""
    torch.manual_seed(0)
    plain = Model("eager", "")
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model = Model(how, "")
    carry(plain, model)
    model.to(dtype)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, weight_decay=options.get("decay", 0.01), **options.get("update", {})
    )
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="mix", task="tensor")
    for step in range(STEPS):
        tokens = torch.randint(0, 23, (2, 8), generator=torch.Generator().manual_seed(step))
        if step == 1:
            block = model.blocks[1]
            assert isinstance(block, Block)
            block.fault = options.get("fault", "")
        debugger.start(model)
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if "update" not in options:  # then the update is recorded, too
            debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def compare(tmp_path: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> Comparison:
    return tensorprobe.compare(record(tmp_path / "r", **reference), record(tmp_path / "c", **candidate))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)],  # tests/compare/truth/test_update.py
    ids=["float32", "bfloat16"],
)
def test_later_steps_of_one_program_written_in_two_ways_agree(dtype: torch.dtype, tmp_path: Path) -> None:
    result = compare(tmp_path, {"dtype": dtype}, {"how": "fused", "dtype": dtype})
    assert result.verdict.kind == "agree", result.verdict.headline
    assert [rank.verdict.kind for rank in result] == ["agree"] * STEPS


@pytest.mark.long  # tests/compare/truth/test_update.py shows the same of a smaller model
def test_an_update_in_many_calls_and_one_in_a_single_call_agree(tmp_path: Path) -> None:
    """In bfloat16 a parameter after its update looks like the rounding of what it was before."""
    bfloat16 = {"dtype": torch.bfloat16}
    result = compare(tmp_path, {"update": {"foreach": False}, **bfloat16}, {"update": {"fused": True}, **bfloat16})
    assert result.verdict.kind == "agree", result.verdict.headline


@pytest.mark.parametrize("how", [pytest.param("eager", marks=pytest.mark.long), "fused"])
def test_a_fault_of_the_second_step_is_named_there(how: str, tmp_path: Path) -> None:
    result = compare(tmp_path, {"how": how}, {"fault": "epsilon"})
    assert result.verdict.step == 1 and result.verdict.call is not None, result.verdict.headline
    assert "layer_norm" in result.verdict.call.candidate[-1].name
    assert result.verdict.call.candidate[-1].module_path == "blocks.1"


def test_another_update_is_said_to_lie_between_the_steps(tmp_path: Path) -> None:
    result = compare(tmp_path, {}, {"how": "fused", "decay": 5.0})
    assert result.verdict.step == 1
    assert result.verdict.headline.startswith("The runs diverge between the steps"), result.verdict.headline


def test_a_later_step_alone_agrees_if_the_update_has_rounded_its_parameters_otherwise(tmp_path: Path) -> None:
    paths = record(tmp_path / "r"), record(tmp_path / "c", how="fused")
    verdict = tensorprobe.compare(*paths, step=1).verdict
    assert verdict.kind == "agree", verdict.headline
    told = "rounded: both runs were executed again with the unrounded ones"
    assert any(told in line for line in verdict.evidence), verdict.evidence


def test_of_a_later_step_alone_it_is_said_that_the_steps_before_it_were_not_compared(tmp_path: Path) -> None:
    paths = record(tmp_path / "r"), record(tmp_path / "c", how="fused", decay=0.02)
    verdict = tensorprobe.compare(*paths, step=1).verdict
    assert verdict.kind == "unequal start", verdict.headline
    assert any("the earlier steps were not compared" in line for line in verdict.evidence)


class Mixing(torch.nn.Module):
    """A complex matrix that is multiplied by itself."""

    def __init__(self, product: str) -> None:
        super().__init__()
        start = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        self.weight, self.product = torch.nn.Parameter(start), product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.product, self.weight, x)


def test_what_is_written_through_a_view_that_was_taken_without_gradients_can_be_executed_again(tmp_path: Path) -> None:
    """As by optimizers of complex parameters. Torch says of no such view how it came about."""
    paths = []
    for name, product in (("r", "ij,jk->ik"), ("c", "ij,jk->ki")):
        model = Mixing(product)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        x = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor") as run:
            for _ in range(2):
                model(x).abs().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
        paths.append(tmp_path / name)
    assert tensorprobe.compare(*paths, by="truth").verdict.kind == "agree"
