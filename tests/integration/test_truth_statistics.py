"""Runs that were recorded with statistics only, held against others by what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.truth import lending
from tests.integration.test_truth_verdict import FAULTS, record

TASKS = [("statistics", "tensor"), ("tensor", "statistics"), ("statistics", "statistics")]


def compare(tmp_path: Path, tasks: tuple[str, str], reference: dict[str, Any], candidate: dict[str, Any]) -> Comparison:
    folders = [
        record(tmp_path / name, task=task, **how)
        for name, task, how in zip("rc", tasks, (reference, candidate), strict=True)
    ]
    return tensorprobe.compare(*folders)


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.some(2)  # each dtype, each way to keep what was recorded
def test_two_ways_to_write_one_program_agree(tasks: tuple[str, str], dtype: torch.dtype, tmp_path: Path) -> None:
    result = compare(tmp_path, tasks, {"dtype": dtype}, {"how": "fused", "dtype": dtype})
    assert result.verdict.kind == "agree", result.verdict
    assert "executed again in float64" in result.verdict.headline
    assert not [call.name for rank in result for call in rank.calls if call.role in ("source", "entered", "drift")]


OTHER_PRECISION = [({}, {"dtype": torch.bfloat16}), ({"dtype": torch.bfloat16}, {"how": "fused"})]


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.parametrize(("reference", "candidate"), OTHER_PRECISION, ids=["one program", "two programs"])
@pytest.mark.some(2)
def test_bfloat16_and_float32_agree(
    reference: dict[str, Any], candidate: dict[str, Any], tasks: tuple[str, str], tmp_path: Path
) -> None:
    result = compare(tmp_path, tasks, reference, candidate)
    assert result.verdict.kind == "agree", result.verdict
    assert "executed again in float64" in result.verdict.headline


def test_bfloat16_and_float32_agree_without_being_executed_again(tmp_path: Path) -> None:
    folders = [
        record(tmp_path / str(dtype), dtype=dtype, task="statistics") for dtype in (torch.float32, torch.bfloat16)
    ]
    result = tensorprobe.compare(*folders, by="growth")
    assert result.verdict.kind == "agree", result.verdict
    assert "the candidate computes in bfloat16, and the reference in float32" in result.verdict.headline


@pytest.mark.parametrize("how", ["eager", "fused"])
def test_an_argument_that_rounding_hides_is_named_in_another_precision(how: str, tmp_path: Path) -> None:
    result = compare(
        tmp_path, ("statistics", "statistics"), {}, {"how": how, "fault": "activation", "dtype": torch.bfloat16}
    )
    assert "called with approximate='tanh'" in result.verdict.headline, result.verdict


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.some(5)
def test_a_fault_is_named(fault: str, tasks: tuple[str, str], tmp_path: Path) -> None:
    result = compare(tmp_path, tasks, {}, {"fault": fault})
    assert result.verdict.call is not None, result.verdict
    assert FAULTS[fault] in result.verdict.call.name or FAULTS[fault] in result.verdict.call.candidate[-1].name


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.some(2)
def test_a_wrong_scale_is_found_inside_a_fused_attention(tasks: tuple[str, str], tmp_path: Path) -> None:
    result = compare(tmp_path, tasks, {"how": "fused"}, {"fault": "scale"})
    assert "inside Functional.scaled_dot_product_attention" in result.verdict.headline
    assert "1.01 times" in result.verdict.headline


def test_it_is_said_whose_tensors_served_both(tmp_path: Path) -> None:
    result = compare(tmp_path, ("statistics", "tensor"), {}, {"fault": "scale"})
    told = "the reference has statistics only: it was executed again with the tensors of the candidate"
    assert any(told in line for line in result.verdict.evidence)
    assert any("Without rounding, the loss is " in line for line in result.verdict.evidence)


def test_no_loss_is_told_of_numbers_that_were_drawn(tmp_path: Path) -> None:
    result = compare(tmp_path, ("statistics", "statistics"), {}, {"fault": "scale"})
    told = (
        "Neither run recorded tensors. With random tensors of the recorded statistics, and without rounding, the loss "
        "differs."
    )
    assert told in result.verdict.evidence


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.some(2)
def test_parameters_that_differ_from_the_start_are_no_fault_of_a_call(tasks: tuple[str, str], tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("blocks.1.up.weight")[3, 3] += 0.5

    result = compare(tmp_path, tasks, {}, {"change": change})
    assert result.verdict.kind == "unequal start"
    assert "up" in result.verdict.headline


def test_a_kernel_that_is_off_is_named_though_the_programs_are_the_same(tmp_path: Path) -> None:
    reference = record(tmp_path / "r", task="statistics")
    candidate = record(tmp_path / "c", how="fused", task="statistics")
    path = candidate / "step0" / "rank" / "dump.json"
    content = json.loads(path.read_text())
    is_after = False
    for name, fields in content["data"].items():
        is_after = is_after or name == "Functional.gelu.1.forward"
        for place in ("input_args", "output") if is_after else ():
            for slot in fields.get(place) or []:
                if isinstance(slot, dict) and slot.get("source") != "Functional.linear.10.forward" and "Sketch" in slot:
                    change(slot, 1.05)
    path.write_text(json.dumps(content))
    result = tensorprobe.compare(reference, candidate)
    assert result.verdict.kind != "agree", result.verdict


def change(slot: dict[str, Any], factor: float) -> None:
    for name in ("Max", "Min", "Mean", "Norm"):
        slot[name] *= factor
    slot["Sketch"] = [factor * number for number in slot["Sketch"]]


def test_a_large_step_without_tensors_is_executed_again_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [record(tmp_path / name, how=how, task="statistics") for name, how in (("r", "eager"), ("c", "fused"))]
    monkeypatch.setattr(lending, "_MOST_DRAWN", 1000)
    assert "executed again" not in tensorprobe.compare(*folders).verdict.headline
    assert "executed again" in tensorprobe.compare(*folders, by="truth").verdict.headline


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, self.training))


def test_what_was_drawn_at_random_cannot_be_drawn_again(tmp_path: Path) -> None:
    folders = []
    for name in "rc":
        torch.manual_seed(0)
        model, x = Dropping(), torch.randn(6, 8)
        with tensorprobe.capture(model, tmp_path / name, level="mix", task="statistics"):
            model(x).square().mean().backward()
        folders.append(tmp_path / name)
    result = tensorprobe.compare(*folders)
    assert result.verdict.kind == "agree"
    assert "executed again" not in result.verdict.headline


class Choosing(nn.Module):
    """Experts whose rows depend on the numbers: with others, other rows are chosen."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.gate, self.scale = nn.Linear(8, 3), scale
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            total = total.index_add(0, rows, expert(x[rows]) * weights[rows, None] * self.scale)
        return total


def test_rows_that_depend_on_the_numbers_are_chosen_by_the_tensors_of_the_other_run(tmp_path: Path) -> None:
    folders = []
    for name, task, scale in (("r", "statistics", 0.5), ("c", "tensor", 0.625)):
        torch.manual_seed(0)
        model, x = Choosing(scale), torch.randn(30, 8)
        with tensorprobe.capture(model, tmp_path / name, level="L1", task=task):
            model(x).square().mean().backward()
        folders.append(tmp_path / name)
    result = tensorprobe.compare(*folders)
    assert "called with input.1=0.625 where the reference had 0.5" in result.verdict.headline
    assert any("it was executed again with the tensors of the candidate" in line for line in result.verdict.evidence)


class Apart(nn.Module):
    """Three projections, or one of all."""

    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 24)] if is_fused else [nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.layers[0](x).chunk(3, -1) if len(self.layers) == 1 else [layer(x) for layer in self.layers]
        return F.scaled_dot_product_attention(*parts).square().mean()


@pytest.mark.parametrize(("order", "kind"), [((0, 1, 2), "agree"), ((0, 2, 1), "unequal start")])
def test_weights_that_are_joined_in_a_wrong_order_do_not_agree(
    order: tuple[int, ...], kind: str, tmp_path: Path
) -> None:
    """Statistics do not tell which rows are which; what was recorded of the results does."""
    torch.manual_seed(0)
    x, apart, joined = torch.randn(5, 8), Apart(is_fused=False), Apart(is_fused=True)
    with torch.no_grad():
        joined.layers[0].weight.copy_(torch.cat([apart.layers[number].weight for number in order]))
        joined.layers[0].bias.copy_(torch.cat([layer.bias for layer in apart.layers]))
    for name, model in (("r", apart), ("c", joined)):
        with tensorprobe.capture(model, tmp_path / name, level="mix", task="statistics"):
            model(x).backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == kind, verdict.headline


class Rotary(nn.Module):
    """Attention with rotated queries and keys. `has_tables`: cosines and mask are made once, not in each forward."""

    def __init__(self, *, has_tables: bool, fault: str = "") -> None:
        super().__init__()
        self.words, self.parts = nn.Embedding(11, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.fault = fault
        self.tables = make_tables(is_strict=fault == "strict") if has_tables else None
        self.weights = torch.tensor([0.5, 2.0, 1.5]) if has_tables else None

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        query, key, value = (part(self.words(tokens)) for part in self.parts)
        cosine, sine, seen = self.tables or make_tables()
        query, key = (x * cosine + torch.cat((-x[..., 4:], x[..., :4]), -1) * sine for x in (query, key))
        scores = query @ key.transpose(-1, -2) / (8.0 if self.fault == "scale" else 8**0.5)
        if self.tables is not None:
            scores = scores.masked_fill(~seen, -1e4)
        else:
            scores = torch.where(seen, scores, torch.tensor(-1e4))
        weights = (torch.tensor([0.5, 2.0, 1.5]) if self.weights is None else self.weights)[labels]
        return ((scores.softmax(-1) @ value).square().mean((1, 2)) * weights).sum() / weights.sum()


def make_tables(*, is_strict: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    places = torch.arange(6).float()
    angles = torch.outer(places, 1 / 100 ** (torch.arange(0, 8, 2).float() / 8)).repeat(1, 2)
    seen = places[:, None] > places[None] if is_strict else places[:, None] >= places[None]
    return angles.cos(), angles.sin(), seen


def record_rotary(folder: Path, task: str, **how: Any) -> Path:
    torch.manual_seed(0)
    model = Rotary(**how)
    tokens, labels = torch.randint(0, 11, (4, 6)), torch.randint(0, 3, (4,))
    with tensorprobe.capture(model, folder, level="L1", task=task):
        model(tokens, labels).backward()
    return folder


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.parametrize("fault", ["", "scale"])
@pytest.mark.some(2)
def test_tables_and_masks_that_only_one_run_computes_are_computed_for_both(
    fault: str, tasks: tuple[str, str], tmp_path: Path
) -> None:
    reference = record_rotary(tmp_path / "r", tasks[0], has_tables=False)
    candidate = record_rotary(tmp_path / "c", tasks[1], has_tables=True, fault=fault)
    verdict = tensorprobe.compare(reference, candidate).verdict
    if fault:
        assert "Tensor.__truediv__" in verdict.headline or "div" in verdict.headline
        assert "8.0" in verdict.headline
    else:
        assert verdict.kind == "agree", verdict
        assert "executed again in float64" in verdict.headline


def test_no_numbers_are_drawn_for_a_mask_that_the_other_run_has_not(tmp_path: Path) -> None:
    """This one sees as many as the right one leaves out."""
    reference = record_rotary(tmp_path / "r", "statistics", has_tables=False)
    candidate = record_rotary(tmp_path / "c", "statistics", has_tables=True, fault="strict")
    with pytest.raises(tensorprobe.UsageError, match="neither in the other run nor computed there"):
        tensorprobe.compare(reference, candidate, by="truth")
    assert tensorprobe.compare(reference, candidate).verdict.kind != "agree"
