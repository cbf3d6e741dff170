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
@pytest.mark.some(3)  # each share, each task
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
@pytest.mark.some(3)  # each of all that varies
def test_parameters_that_only_a_compiled_module_uses_have_their_recorded_gradients(
    scale: float, task: str, updates: bool, tmp_path: Path
) -> None:
    def compile_candidate(side: str, net: nn.Module) -> nn.Module:
        assert isinstance(net, Net)
        return Compiled(net, scale) if side == "candidate" else net

    verdict = compare(tmp_path, (at_once, at_once), compile_candidate, task, updates)
    assert (verdict.kind == "agree") is (scale == 1.0), verdict.headline


def shrink(decay: float) -> Loss:
    def loss_of(net: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return at_once(net, x, target) + decay * sum(one.square().sum() for one in net.parameters())

    return loss_of


@pytest.mark.parametrize("decay", [0.01, 0.02])
def test_parameters_that_a_compiled_module_uses_besides_have_all_of_their_gradients(
    decay: float, tmp_path: Path
) -> None:
    def compile_candidate(side: str, net: nn.Module) -> nn.Module:
        assert isinstance(net, Net)
        if side == "candidate":
            net.head = torch.compile(net.head, backend="aot_eager")
        return net

    verdict = compare(tmp_path, (shrink(0.01), shrink(decay)), compile_candidate, updates=True)
    assert (verdict.kind == "agree") is (decay == 0.01), verdict.headline


def test_what_comes_out_of_a_function_transform_is_known_as_it_was_recorded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    nets, x, target = [Net() for _ in range(3)], torch.randn(6, 8), torch.randint(0, 5, (6,))
    one = Net()

    parameters, buffers = torch.func.stack_module_state(nets)
    parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}

    def together(factor: float) -> torch.Tensor:
        call = lambda given, kept: factor * torch.func.functional_call(one, (given, kept), (x,))  # noqa: E731
        return torch.stack([F.cross_entropy(y, target) for y in torch.vmap(call)(parameters, buffers)]).mean()

    def one_by_one(_: float) -> torch.Tensor:
        return torch.stack([F.cross_entropy(net(x), target) for net in nets]).mean()

    for name, way, factor in (("loop", one_by_one, 1.0), ("vmap", together, 1.0), ("wrong", together, 1.01)):
        with tensorprobe.capture(nn.ModuleList(nets), tmp_path / name, level="L1", task="tensor"):
            way(factor).backward()
    verdict = tensorprobe.compare(tmp_path / "loop", tmp_path / "vmap").verdict
    assert verdict.kind == "agree", verdict.headline
    assert tensorprobe.compare(tmp_path / "loop", tmp_path / "wrong").verdict.kind != "agree"
