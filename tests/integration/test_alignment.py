"""Real PyTorch programs that compute the same in different ways, recorded and aligned. Weights tell the truth: the
records of two modules belong together when their parameters were the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorprobe import capture
from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.alignment import Alignment
from tensorprobe.compare.match.slot_pair import pair_match_slots
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tensorprobe.store.slot import TensorSlot
from tests.interoperation.program import Net, record_case

MSPROBE_DUMPS = Path(__file__).parents[1] / "store" / "msprobe_dump"
WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.is_fused = is_fused
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            y = F.dropout(scores.masked_fill(~mask, -math.inf).softmax(-1), 0.0) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(is_fused)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))


class Model(nn.Module):
    def __init__(self, is_fused: bool = True, layers: int = 4, is_checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.is_checkpointed = is_checkpointed
        self.layers = nn.ModuleList(Block(is_fused) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return self.head(x)


class Wrapper(nn.Module):
    """What DistributedDataParallel does to the names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Run]:
    count = iter(range(9))

    def record_model(model: nn.Module, level: str) -> Run:
        folder = tmp_path / str(next(count))
        torch.manual_seed(1)
        x = torch.randn(2, 5, WIDTH)
        with capture(model, str(folder), level=level):
            model(x).square().mean().backward()
        return read_run(next(open_dump(folder).ranks()))

    return record_model


Record = Callable[[nn.Module, str], Run]


def parameters(call: Call) -> list[tuple[object, ...]]:
    """Statistics of the parameters that a module record has, or a call was given."""
    wanted = "parameters" if call.kind == "module" else "input"
    return [
        (slot.shape, slot.max, slot.min, slot.mean)
        for slot in call.slots
        if isinstance(slot, TensorSlot) and slot.slot.startswith(wanted) and slot.source is None and slot.requires_grad
    ]


def assert_same_parameters(alignment: Alignment) -> None:
    checked = 0
    for match in alignment.matches:
        if match.rule != "group" and match.reference[0].direction == "forward":
            assert parameters(match.reference[0]) == parameters(match.candidate[0]), match
            checked += bool(parameters(match.reference[0]))
    assert checked > 5


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_missing_layer_of_a_checkpoint(record: Record, level: str) -> None:
    smaller = Model()
    del smaller.layers[1]
    alignment = align_calls(record(Model(), level), record(smaller, level))
    assert_same_parameters(alignment)
    assert not alignment.only_candidate
    assert all((one.call.module_path or "").startswith("layers.1") for one in alignment.only_reference)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_wrapped_model(record: Record, level: str) -> None:
    alignment = align_calls(record(Model(), level), record(Wrapper(Model()), level))
    assert_same_parameters(alignment)
    assert not alignment.only_reference
    assert {one.call.op for one in alignment.only_candidate} <= {"Wrapper"}


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_fused_attention_against_its_parts(record: Record, level: str) -> None:
    alignment = align_calls(record(Model(is_fused=False), level), record(Model(), level))
    assert_same_parameters(alignment)
    assert not alignment.only_reference and not alignment.only_candidate
    groups = [match for match in alignment.matches if match.rule == "group"]
    assert [match.candidate[-1].op for match in groups] == ["scaled_dot_product_attention"] * 8
    for match in groups:
        pairs = pair_match_slots(match, alignment)
        assert len(pairs) == 4, "queries, keys, values and the result, or their gradients"
        for one, other in pairs:
            assert isinstance(one, TensorSlot) and isinstance(other, TensorSlot)
            assert one.norm == pytest.approx(other.norm, rel=1e-5)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_recomputed_program_against_one_that_is_not(record: Record, level: str) -> None:
    alignment = align_calls(record(Model(), level), record(Model(is_checkpointed=True), level))
    assert {match.rule for match in alignment.matches} == {"same name"}
    assert not alignment.only_reference
    assert {one.call.direction for one in alignment.only_candidate} == {"recompute"}


def test_recomputed_calls_stand_against_recomputed_ones(record: Record) -> None:
    smaller = Model(is_checkpointed=True)
    del smaller.layers[2]
    alignment = align_calls(record(Model(is_checkpointed=True), "mix"), record(smaller, "mix"))
    recomputed = [match for match in alignment.matches if match.reference[0].direction == "recompute"]
    assert recomputed and not alignment.only_candidate
    for match in recomputed:
        assert parameters(match.reference[0]) == parameters(match.candidate[0])


@pytest.mark.parametrize("case", ["mix-md5", "L0-tensor"])
def test_the_same_program_recorded_by_msprobe(tmp_path: Path, case: str) -> None:
    import tensorprobe.pytorch as tool

    tool.PrecisionDebugger.reset()
    record_case(tool, tmp_path, case)
    tool.PrecisionDebugger.reset()
    ours, theirs = (read_run(next(open_dump(folder / case).ranks())) for folder in (tmp_path, MSPROBE_DUMPS))
    alignment = align_calls(ours, theirs)
    paired = {match.reference[0].name: match.candidate[0].name for match in alignment.matches}
    assert paired["Module.head.Head.parameters_grad"] == "Module.head.Head.parameters_grad.0"
    assert paired["Module.shared.Linear.forward.1"] == "Module.shared.Linear.forward.1"
    assert {one.call.op for one in alignment.only_candidate} <= {"sum"}, "what has no gradient here"
    assert {one.call.op for one in alignment.only_reference} >= {Net.__name__}, "msprobe has no record of the model"
    if case == "mix-md5":
        assert paired["Tensor.mul.0.backward"] == "Tensor.__mul__.0.backward"
        match = next(one for one in alignment.matches if one.reference[0].name == "Functional.linear.1.backward")
        for one, other in pair_match_slots(match, alignment):
            assert isinstance(one, TensorSlot) and isinstance(other, TensorSlot)
            assert one.shape == other.shape, "the gradients are listed in another order there"
