"""Two programs that are written differently, of which nothing but statistics is known and calls are paired by guesses:
if the loss and the gradients are the same, nobody is told that they differ."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.pytorch import PrecisionDebugger

WIDTH, HEADS = 16, 2


class Separate(nn.Module):
    """As an old repository has it: three projections, and attention written out."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        if self.fault == "scale":
            scores = scores * 1.05
        if self.fault == "detached":
            v = v.detach()
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class Joint(nn.Module):
    """The same with one projection and fused attention."""

    def __init__(self, other: Separate) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        parts = other.q, other.k, other.v
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([one.weight for one in parts]))
            self.qkv.bias.copy_(torch.cat([one.bias for one in parts]))
            self.out.load_state_dict(other.out.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape))


class Model(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.mixer, self.last = (
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            mixer,
            nn.Linear(WIDTH, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.first(x))
        result: torch.Tensor = self.last(x + self.mixer(self.norm(x)))
        return result


class ByHand(nn.Module):
    """The same without any layer: no call looks like one of the others."""

    def __init__(self, other: Model) -> None:
        super().__init__()
        self.other = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def project(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("btd,od->bto", x, layer.weight) + layer.bias

        mixer, norm = self.other.mixer, self.other.norm
        x = project(self.other.first, x)
        x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        centred = x - x.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias
        q, k, v = (project(one, normed).unflatten(-1, (HEADS, -1)) for one in (mixer.q, mixer.k, mixer.v))
        powers = torch.exp(torch.einsum("bthd,bshd->bhts", q, k) / (WIDTH // HEADS) ** 0.5)
        chances = powers / powers.sum(-1, keepdim=True)
        if mixer.fault == "scale":
            chances = chances * 1.05
        mixed = torch.einsum("bhts,bshd->bthd", chances, v).flatten(-2)
        return project(self.other.last, x + project(mixer.out, mixed))


def print_norm(gradients: list[torch.Tensor], *, at_once: bool) -> None:
    """As one program prints it, and another in its own way: nobody takes it."""
    if at_once:
        print(torch.cat([one.flatten() for one in gradients]).norm().item())
    else:
        print(sum(float(one.square().sum()) for one in gradients) ** 0.5)


def record(
    path: Path, mixer: nn.Module, level: str, dtype: torch.dtype, *, by_hand: bool = False, rate: float = 0.0
) -> Path:
    """`by_hand`: also half of the batch at a time. `rate`: of learning, if there is an optimizer."""
    model: nn.Module = Model(mixer).to(dtype)
    model = ByHand(model) if by_hand else model
    optimizer = torch.optim.Adam(model.parameters(), lr=rate) if rate else None
    torch.manual_seed(2)
    x, target = torch.randn(4, 7, WIDTH, dtype=dtype), torch.randint(0, 5, (4, 7))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(path), level=level, task="statistics")
    debugger.start(model)
    parts = 2 if by_hand else 1
    for some, theirs in zip(x.chunk(parts), target.chunk(parts), strict=True):
        (F.cross_entropy(model(some).float().flatten(0, 1), theirs.flatten()) / parts).backward()
    if optimizer is not None:
        optimizer.step()
        print_norm([one.grad for one in model.parameters() if one.grad is not None], at_once=by_hand)
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return path


def compare(
    tmp_path: Path, fault: str = "", level: str = "L1", dtype: torch.dtype = torch.float32, **how: Any
) -> Comparison:
    torch.manual_seed(0)
    separate = Separate(fault)
    joint = Joint(separate)
    reference = record(tmp_path / "reference", joint, level, dtype)
    return tensorprobe.compare(reference, record(tmp_path / "candidate", separate, level, dtype), **how)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_refactor_is_no_alarm(level: str, dtype: torch.dtype, tmp_path: Path) -> None:
    result = compare(tmp_path, level=level, dtype=dtype, by="growth")
    assert result.verdict.kind == "agree", result.verdict
    assert not result.ranks[0].others
    assert {call.role for call in result.ranks[0].calls} <= {"clean", "not compared"}


def test_it_is_said_what_agrees_and_what_was_not_compared(tmp_path: Path) -> None:
    verdict = compare(tmp_path, by="growth").verdict
    assert verdict.headline.startswith("The runs have the same results: the loss and ")
    assert "2 other gradients of the reference could not be compared" in verdict.headline  # in parts
    assert any("the programs are written differently" in line for line in verdict.evidence)
    assert any('task "replay" or "tensor"' in line for line in verdict.evidence)


@pytest.mark.parametrize("fault", ["scale", "detached"])
@pytest.mark.parametrize("by", ["growth", "auto"])
def test_a_fault_of_the_forward_or_of_the_backward_is_still_an_alarm(fault: str, by: str, tmp_path: Path) -> None:
    result = compare(tmp_path, fault, by=by)
    assert not result
    assert result.verdict.kind != "agree"


def test_where_they_part_is_found_by_what_was_computed(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "scale", by="growth").verdict
    assert verdict.call is not None
    assert verdict.call.reference[-1].op == "scaled_dot_product_attention"
    assert verdict.call.candidate[-1].module_path == "mixer"
    assert "the inputs are the same, but the results differ" in verdict.headline
    assert any(line.startswith("the recorded loss is ") for line in verdict.evidence)
    assert any("scores = scores * 1.05" in line or "scores = q @ k" in line for line in verdict.evidence)
    assert any('task "replay" or "tensor"' in line for line in verdict.evidence)


@pytest.mark.parametrize("fault", ["", "scale"])
def test_no_call_need_look_like_one_of_the_other_program(fault: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    separate = Separate(fault)
    reference = record(tmp_path / "reference", Joint(separate), "L1", torch.float32)
    candidate = record(tmp_path / "candidate", separate, "L1", torch.float32, by_hand=True)
    verdict = tensorprobe.compare(reference, candidate, by="growth").verdict
    if not fault:
        assert verdict.kind == "agree", verdict
        return
    assert verdict.kind == "source", verdict
    assert verdict.call is not None and verdict.call.reference[-1].op == "scaled_dot_product_attention"


def test_another_update_out_of_the_same_gradients_is_named_where_it_is_made(tmp_path: Path) -> None:
    """Of the bias of the keys the gradient is nothing but rounding, and each optimizer makes something else of it."""
    torch.manual_seed(0)
    separate = Separate()
    reference = record(tmp_path / "reference", Joint(separate), "L1", torch.float32, rate=1e-2)
    same, other = (
        record(tmp_path / str(rate), deepcopy(separate), "L1", torch.float32, by_hand=True, rate=rate)
        for rate in (1e-2, 2e-2)
    )
    verdict = tensorprobe.compare(reference, same, by="growth").verdict
    assert verdict.kind == "agree", verdict
    verdict = tensorprobe.compare(reference, other, by="growth").verdict
    assert verdict.headline.startswith("The loss and the gradients agree, but first.weight (other.first.weight) and ")
    assert "updated differently" in verdict.headline
    assert any("optimizer.step()" in line for line in verdict.evidence), verdict.evidence


def test_another_learning_rate_is_named_though_one_program_is_written_otherwise(tmp_path: Path) -> None:
    """The truth of numbers that are drawn for both runs says nothing of it."""
    paths = []
    for rate in (1e-2, 2e-2):
        torch.manual_seed(0)
        paths.append(record(tmp_path / str(rate), Separate(), "L1", torch.float32, rate=rate))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.call is not None and "addcdiv_" in verdict.call.name, verdict


def test_a_number_that_is_computed_of_other_data_after_the_backward_is_a_result(tmp_path: Path) -> None:
    def look(path: Path, mixer: nn.Module, measure: Callable[[torch.Tensor], torch.Tensor]) -> Path:
        model = Model(mixer)
        x = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(3))
        with tensorprobe.capture(model, str(path), level="L1", task="statistics"):
            model(x).square().mean().backward()
            with torch.no_grad():
                measure(model(2 * x))
        return path

    torch.manual_seed(0)
    separate = Separate()
    reference = look(tmp_path / "reference", Joint(separate), lambda y: y.abs().max())
    same = look(tmp_path / "same", separate, lambda y: y.abs().amax())
    other = look(tmp_path / "other", separate, lambda y: y.abs().mean())
    assert tensorprobe.compare(reference, same, by="growth").verdict.kind == "agree"
    assert tensorprobe.compare(reference, other, by="growth").verdict.kind != "agree"


def test_a_gradient_that_does_not_come_back_is_found_by_the_gradients_that_do(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "detached", by="growth").verdict
    assert verdict.call is not None
    names = [verdict.call.reference[-1].name, verdict.call.candidate[-1].name]
    assert any("scaled_dot_product_attention.0.backward" in name or "matmul" in name for name in names), names


def test_of_one_program_every_call_is_judged_though_the_results_agree(tmp_path: Path) -> None:
    """Its pairs are no guesses: an argument that differs is named, however small its effect."""
    torch.manual_seed(0)
    mixers = [Separate(), Separate()]
    mixers[1].load_state_dict(mixers[0].state_dict())
    reference = record(tmp_path / "reference", mixers[0], "L1", torch.float32)
    original = nn.LayerNorm.__init__.__defaults__
    assert original is not None
    nn.LayerNorm.__init__.__defaults__ = (2e-5, *original[1:])
    try:
        candidate = record(tmp_path / "candidate", mixers[1], "L1", torch.float32)
    finally:
        nn.LayerNorm.__init__.__defaults__ = original
    verdict = tensorprobe.compare(reference, candidate, by="growth").verdict
    assert verdict.call is not None and "layer_norm" in verdict.call.name
