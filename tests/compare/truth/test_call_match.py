"""Calls are paired by what they compute; names and order only choose among equals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import CallResult, RankResult
from tensorprobe.run.call import Call

Program = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Weights(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(8, 8, generator=generator) * 0.4) for _ in range(3)
        )
        self.program = program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self, x)


def compare(tmp_path: Path, reference: Program, candidate: Program, by: str = "auto") -> RankResult:
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    for name, program in (("r", reference), ("c", candidate)):
        model = Weights(program)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task="tensor"):
            model(x).backward()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c", by=by).ranks[0]


def find(result: RankResult, operation: str) -> CallResult:
    return next(call for call in result.calls if any(f".{operation}" in one.name for one in call.reference))


def names(calls: tuple[Call, ...]) -> list[str]:
    return [call.name for call in calls]


def fused(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    query, key, value = (x @ weight for weight in (model.query, model.key, model.value))
    return F.scaled_dot_product_attention(query, key, value).square().mean()


def written_out(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value, key, query = (x @ weight for weight in (model.value, model.key, model.query))
    scores = query @ key.transpose(-1, -2) / 8**0.5
    return (scores.softmax(-1) @ value).square().mean()


def test_calls_in_another_order_are_paired_by_what_they_compute(tmp_path: Path) -> None:
    result = compare(tmp_path, fused, written_out)
    pair = find(result, "matmul.0.forward")
    assert (pair.rule, names(pair.candidate)) == ("truth", ["Tensor.matmul.2.forward"])  # the product with the query


def test_one_call_stands_against_all_calls_that_compute_the_same(tmp_path: Path) -> None:
    attention = find(compare(tmp_path, fused, written_out), "scaled_dot_product_attention")
    assert attention.rule == "truth"
    assert [name.split(".")[1] for name in names(attention.candidate)] == ["matmul", "div", "softmax", "matmul"]
    assert {value.status for value in attention.values if value.is_tensor} <= {"equal", "close"}


def test_no_call_needs_a_partner_where_both_runs_compute_the_same(tmp_path: Path) -> None:
    def with_more(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = (x * 3).flip(0).flip(0) / 3
        return fused(model, x)

    result = compare(tmp_path, fused, with_more)
    assert result.verdict.kind == "agree"
    assert result.coverage.share == 1
    assert all(unpaired.is_idle for unpaired in (*result.only_reference, *result.only_candidate))


def test_calls_after_a_mistake_are_paired_all_the_same(tmp_path: Path) -> None:
    def wrong(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (x @ weight for weight in (model.query, model.key, model.value))
        return ((query @ key.transpose(-1, -2) / 8**0.25).softmax(-1) @ value).square().mean()

    result = compare(tmp_path, written_out, wrong)
    assert result.verdict.call is not None
    assert "div" in result.verdict.call.candidate[-1].name
    assert "mean" in names(find(result, "mean").candidate)[-1]
    assert find(result, "mean").role == "propagated"


def test_judged_by_growth_the_names_decide(tmp_path: Path) -> None:
    result = compare(tmp_path, fused, written_out, by="growth")
    assert "truth" not in {call.rule for call in result.calls}
