"""Programs that hold together what the reference holds apart, with a fault in what they compute of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict

IN, OUT, HEADS = 6, 3, 2
DECAY, RATE = 0.1, 0.3


class Apart(nn.Module):
    """A weight and its bias, trained by one step within the step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(OUT, IN)), nn.Parameter(torch.randn(OUT))

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        error = (torch.softmax(x @ self.weight.t() + self.bias, -1) - goal) / len(x)
        weight = self.weight * (1 - RATE * DECAY) - RATE * torch.tanh(error.t() @ x)
        bias = self.bias - RATE * torch.tanh(error.sum(0))
        return (x @ weight.t() + bias).square().mean()


class Joined(nn.Module):
    """The bias is the last column of the weight."""

    def __init__(self, apart: Apart, fault: str) -> None:
        super().__init__()
        self.joined = nn.Parameter(torch.cat([apart.weight, apart.bias[:, None]], 1).detach())
        self.fault = fault

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, torch.ones(len(x), 1)], 1)
        decays = torch.full((1, IN + 1), DECAY)
        if self.fault != "bias decays":
            decays[:, IN:] = 0
        error = (torch.softmax(x @ self.joined.t(), -1) - goal) / len(x)
        gradient = error.t() @ x
        decayed = self.joined - RATE * decays * self.joined
        moved = torch.sigmoid(gradient) if self.fault == "sigmoid" else torch.tanh(gradient)
        return (x @ (decayed - RATE * moved).t()).square().mean()


class Twins(nn.Module):
    """Two heads, of which the lower answer counts."""

    def __init__(self, way: str = "apart", choose: str = "min") -> None:
        super().__init__()
        self.way, self.choose = way, choose
        self.first, self.second = nn.Parameter(torch.randn(IN, 1)), nn.Parameter(torch.randn(IN, 1))

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        if self.way == "apart":
            answers = [torch.tanh(x @ one).squeeze(-1) for one in (self.first, self.second)]
            return (torch.min(*answers) - goal[:, 0]).square().mean()
        both = torch.tanh(x @ torch.stack([self.first, self.second])).squeeze(-1)
        chosen = both.amin(0) if self.choose == "min" else both.mean(0)
        return (chosen - goal[:, 0]).square().mean()


def compare(folder: Path, *models: nn.Module) -> Verdict:
    torch.manual_seed(1)
    x, goal = torch.randn(5, IN), torch.rand(5, OUT)
    for name, model in zip("rc", models, strict=True):
        with tensorprobe.capture(model, folder / name, level="L1", task="tensor"):
            model(x, goal).backward()
    return tensorprobe.compare(folder / "r", folder / "c").verdict


@pytest.mark.parametrize("fault", ["", "sigmoid", "bias decays"])
def test_a_bias_as_a_column_of_the_weight(fault: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    apart = Apart()
    verdict = compare(tmp_path, apart, Joined(apart, fault))
    if not fault:
        assert verdict.kind == "agree", verdict.headline
        return
    source = next(line for line in verdict.evidence if "candidate line" in line)
    assert {"sigmoid": "moved =", "bias decays": "decayed"}[fault] in source, verdict.headline
    assert "input.1" not in verdict.headline


@pytest.mark.parametrize("choose", ["min", "mean"])
def test_two_heads_at_once(choose: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    apart, joined = Twins(), Twins("joined", choose)
    joined.load_state_dict(apart.state_dict())
    verdict = compare(tmp_path, apart, joined)
    if choose == "min":
        assert verdict.kind == "agree", verdict.headline
    else:
        assert "min" in verdict.headline and "mean" in verdict.headline, verdict.headline


class Outputs(nn.Module):
    """Three outputs with a weight and a bias each, or with one of each for all."""

    def __init__(self, is_joined: bool, share: float = 1.0) -> None:
        super().__init__()
        single = [nn.Linear(IN, 1) for _ in range(OUT)]
        joined = nn.Linear(IN, OUT)
        joined.weight.data = torch.cat([one.weight.data for one in single])
        joined.bias.data = torch.cat([one.bias.data for one in single])
        self.layers, self.share = nn.ModuleList([joined] if is_joined else single), share

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        if len(self.layers) > 1:
            return (torch.cat([one(x) for one in self.layers], 1).tanh() - goal).square().mean()
        weight, bias = self.layers[0].weight, self.layers[0].bias
        bias = self.share * bias + ((1 - self.share) * bias).detach()
        return (nn.functional.linear(x, weight, bias).tanh() - goal).square().mean()


@pytest.mark.parametrize("share", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("is_turned", [False, True], ids=["apart first", "joined first"])
def test_biases_of_single_outputs_against_one_for_all(share: float, is_turned: bool, tmp_path: Path) -> None:
    models = []
    for is_joined in (False, True):
        torch.manual_seed(0)
        models.append(Outputs(is_joined, share))
    verdict = compare(tmp_path, *(models[::-1] if is_turned else models))
    assert (verdict.kind == "agree") is (share == 1.0), verdict.headline
