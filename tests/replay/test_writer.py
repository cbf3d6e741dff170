"""What a step leaves behind: parameters, buffers and the states of optimizers are those of the run, to the bit, and in
float64 what they should be. Many of these are written without a new version, and without being returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tests.replay.program import run_replay
from tests.replay.state import FinalState

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
Work = Callable[[nn.Module, torch.Tensor], None]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD, one by one": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "Adam, one by one": lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, 0.1, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    # without a bias before the normalisation: its gradient is zero, and Adam makes a step of its rounding
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def make_data() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def record(folder: Path, work: Work, level: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """What `work` does to a model, looked at when it is done."""
    model, x = make_model(), make_data()
    with tensorprobe.capture(model, folder, level=level, task="tensor") as run:
        work(model, x)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().clone()
        run.step()
    return folder, model.state_dict()


def train(make: MakeOptimizer) -> Work:
    def work(model: nn.Module, x: torch.Tensor) -> None:
        optimizer = make(model.parameters())
        for number in range(2):
            optimizer.zero_grad(set_to_none=number == 0)
            (model(x) ** 2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.clone()

    return work


def accumulate(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for part in x.split(2):
        ((model(part) if len(part) > 1 else model(x)) ** 2).sum().backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()


def average(model: nn.Module, x: torch.Tensor) -> None:
    """An average of the parameters beside them, through `.data`, and a buffer that is copied."""
    mean = make_model().to(x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(x) ** 2).sum().backward()
        optimizer.step()
        for own, other in zip(mean.parameters(), model.parameters(), strict=True):
            own.data.mul_(0.9).add_(other.data, alpha=0.1)
        with torch.no_grad():
            for own, other in zip(mean.buffers(), model.buffers(), strict=True):
                own.copy_(other)
    mean.eval()(x).sum()


def update_by_hand(model: nn.Module, x: torch.Tensor) -> None:
    for _ in range(2):
        (model(x) ** 2).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    model[0].weight.data = model[0].weight.data * 0.5
    model(x).sum().backward()


WORKS: dict[str, Work] = {
    **{name: train(make) for name, make in OPTIMIZERS.items()},
    "accumulation": accumulate,
    "an average of the parameters": average,
    "updates by hand": update_by_hand,
}


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.some(3)
def test_a_step_leaves_the_same_bits_when_it_is_replayed(name: str, level: str, tmp_path: Path) -> None:
    folder, after = record(tmp_path, WORKS[name], level)
    replay, differences = run_replay(folder, "recorded")
    assert (differences.found, replay.coverage.gaps, replay.workspace.unseen_writes) == ([], {}, [])
    for parameter, tensor in replay.workspace.parameters.items():
        assert torch.equal(tensor, after[parameter]), parameter


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.some(3)
def test_the_truth_of_what_a_step_leaves_is_that_of_a_float64_run(name: str, tmp_path: Path) -> None:
    folder, _ = record(tmp_path, WORKS[name], "mix")
    state = FinalState(folder)
    model = make_model().to(torch.float64)
    WORKS[name](model, make_data().to(torch.float64))
    for parameter, value in model.named_parameters():
        assert state.is_close(parameter, value.detach(), 1e-12), parameter


def test_nothing_is_wrong_with_a_right_optimizer(tmp_path: Path) -> None:
    folder, _ = record(tmp_path, WORKS["AdamW, fused"], "mix")
    (run,) = tensorprobe.truth(folder).runs
    assert run.findings == [] and run.unchecked == {}


def test_an_optimizer_that_errs_is_named(tmp_path: Path) -> None:
    """A fused kernel that takes another epsilon than it is told."""
    library = torch.library.Library("aten", "IMPL")

    def err(self: Any, grads: Any, *lists: Any, **settings: Any) -> None:
        for parameter, gradient in zip(self, grads, strict=True):
            parameter.sub_(settings["lr"] * gradient / (gradient.abs() + 1e-2))

    library.impl("_fused_sgd_", err, "CPU")
    try:
        folder, _ = record(tmp_path, train(lambda p: torch.optim.SGD(p, 0.1, fused=True)), "mix")
    finally:
        library._destroy()
    named = {(finding.kind, finding.record) for finding in tensorprobe.truth(folder).findings}
    assert ("kernel", "Torch._fused_sgd_.0.forward") in named
    assert {record for _, record in named} <= {"Torch._fused_sgd_.0.forward", "Torch._fused_sgd_.1.forward"}


def test_what_a_normalisation_writes_is_recorded_with_the_call_that_writes_it(tmp_path: Path) -> None:
    folder, after = record(tmp_path, lambda model, x: model(x), "L1")
    replay, _ = run_replay(folder, "recorded")
    (norm,) = [call for call in replay.program.calls() if call.op == "batch_norm"]
    written = {leaf.slot: replay.recorded.load(leaf) for leaf in norm.outputs if leaf.slot.startswith("written")}
    assert set(written) == {"written.input.1", "written.input.2"}
    assert torch.equal(written["written.input.1"], after["1.running_mean"])
    looks = [leaf for call in replay.program.calls() for leaf in call.inputs if leaf.storage == norm.inputs[0].storage]
    assert looks
    later = [leaf.source for call in replay.program.calls() if call.op == "detach" for leaf in call.inputs]
    assert later.count(norm.name) == 2


class TestAutocastWithAScaler:
    """float16 on a CPU, with a GradScaler."""

    def work(self, model: nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(x) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    def test_the_replay_gives_every_bit_again(self, tmp_path: Path) -> None:
        folder, after = record(tmp_path, self.work, "mix")
        replay, differences = run_replay(folder, "recorded")
        assert (differences.found, replay.coverage.gaps, replay.workspace.unseen_writes) == ([], {}, [])
        for parameter, tensor in replay.workspace.parameters.items():
            assert torch.equal(tensor, after[parameter]), parameter

    def test_nothing_is_wrong_with_it(self, tmp_path: Path) -> None:
        folder, after = record(tmp_path, self.work, "mix")
        (run,) = tensorprobe.truth(folder).runs
        assert run.findings == [] and run.unchecked == {}
        state = FinalState(folder)
        for parameter in state.tensors.keys() & after.keys():
            assert state.is_close(parameter, after[parameter].double(), 1e-2), parameter
