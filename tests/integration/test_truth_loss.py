"""What counts as the loss of a step, and as a gradient of it, however the program comes by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.body(x)))


def compare(
    tmp_path: Path,
    losses: tuple[Loss, Loss],
    nets: Callable[[str, nn.Module], nn.Module] = lambda _, net: net,
    task: str = "tensor",
    updates: bool = False,
) -> Verdict:
    """Two steps of two ways to compute a loss."""
    for side, loss_of in zip(("reference", "candidate"), losses, strict=True):
        torch.manual_seed(0)
        net, x, target = Net(), torch.randn(6, 8), torch.randint(0, 5, (6,))
        model = nets(side, net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with tensorprobe.capture(net, tmp_path / side, level="L1", task=task) as run:
            for _ in range(2):
                loss_of(model, x, target).backward()
                if updates:
                    optimizer.step()
                    optimizer.zero_grad()
                run.step()
    return tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate").verdict


def penalty(y: torch.Tensor) -> torch.Tensor:
    return y.softmax(-1).mean(0).square().sum()


def in_place(share: float) -> Loss:
    def loss_of(net: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = net(x)
        loss = F.cross_entropy(y, target)
        loss += share * penalty(y)
        return loss

    return loss_of


def at_once(net: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    y = net(x)
    return F.cross_entropy(y, target) + 0.1 * penalty(y)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_a_loss_that_is_added_to_in_place_is_one_loss(share: float, task: str, tmp_path: Path) -> None:
    verdict = compare(tmp_path, (in_place(share), at_once), task=task)
    assert (verdict.kind == "agree") is (share == 0.1), verdict.headline


class Compiled(nn.Module):
    """Its head is compiled."""

    def __init__(self, net: Net, scale: float) -> None:
        super().__init__()
        self.net = net
        self.head = torch.compile(net.head, backend="aot_eager")
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.scale * F.gelu(self.net.body(x)))


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_parameters_that_only_a_compiled_module_uses_have_their_recorded_gradients(
    scale: float, task: str, updates: bool, tmp_path: Path
) -> None:
    def compile_candidate(side: str, net: nn.Module) -> nn.Module:
        assert isinstance(net, Net)
        return Compiled(net, scale) if side == "candidate" else net

    verdict = compare(tmp_path, (at_once, at_once), compile_candidate, task, updates)
    assert (verdict.kind == "agree") is (scale == 1.0), verdict.headline
