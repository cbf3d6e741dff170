"""Off means absent: between stop and start, and for what is filtered out, nothing of the tool is anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from tensorprobe.pytorch import PrecisionDebugger
from tests.pytorch.program import DUMP, make_net, train_step


def start(**options: Any) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, **options)


def torch_attributes() -> dict[tuple[str, str], Any]:
    """Everything that a tool could have put something in the place of."""
    owners = [torch, F, nn.Module, torch.Tensor, torch._tensor.Tensor, torch.distributed]
    owners += [torch.distributed.distributed_c10d, torch.autograd, torch._C.ScriptFunction, torch._C.ScriptMethod]
    owners += torch.autograd.Function.__mro__[:-1]
    found = {(str(owner), name): value for owner in owners for name, value in list(vars(owner).items())}
    found["", "optimizer hooks"] = len(_global_optimizer_post_hooks)
    found["", "modes"] = torch._C._len_torch_function_stack()
    return found


def changed(before: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    after = torch_attributes()
    return [
        key
        for key in before.keys() | after.keys()
        if after.get(key) is not before.get(key) and not isinstance(after.get(key), type(torch))
    ]


def hooks_and_attributes(model: nn.Module) -> list[Any]:
    """What the user's own objects hold."""
    objects: list[Any] = [*model.modules(), *model.parameters()]
    return [
        {name: dict(value) if isinstance(value, dict) else id(value) for name, value in vars(item).items()}
        for item in objects
    ] + [item._backward_hooks for item in model.parameters()]


def is_installed() -> bool:
    return torch._C._len_torch_function_stack() > 0 or "tensorprobe" in nn.Module.__call__.__code__.co_filename


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_between_stop_and_start_nothing_is_installed(level: str) -> None:
    model, x = make_net()
    before, objects = torch_attributes(), hooks_and_attributes(model)
    debugger = start(level=level)
    assert changed(before) == []
    debugger.start(model)
    assert is_installed()
    train_step(model, x)
    model.zero_grad()
    debugger.stop()
    assert changed(before) == []
    assert hooks_and_attributes(model) == objects
    assert vars(x) == {} and x._backward_hooks is None
    debugger.step()
    assert changed(before) == []


def test_the_check_of_what_is_installed_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch_attributes()
    monkeypatch.setattr(F, "linear", lambda *_: None)
    monkeypatch.setattr(nn.Module, "__call__", lambda *_: None)
    assert sorted(name for _, name in changed(before)) == ["__call__", "linear"]


def test_for_filtered_steps_nothing_is_installed() -> None:
    model, _ = make_net()
    before = torch_attributes()
    debugger = start(level="mix", step=[1])
    debugger.start(model)
    assert changed(before) == [] and not is_installed()
    debugger.step()
    debugger.start(model)
    assert is_installed()


def test_for_filtered_ranks_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    Path("config.json").write_text('{"rank": [0], "level": "mix", "dump_path": "dump"}')
    model, _ = make_net()
    before = torch_attributes()
    PrecisionDebugger("config.json").start(model)
    assert changed(before) == [] and not DUMP.exists()


def test_level_debug_installs_nothing() -> None:
    model, x = make_net()
    before = torch_attributes()
    debugger = start(level="debug")
    debugger.start(model)
    debugger.save(model(x), "y")
    assert changed(before) == []


def raise_in(model: nn.Module, x: torch.Tensor) -> None:
    model(x[:, :, :1])  # too small for the kernel


def interrupt(model: nn.Module, x: torch.Tensor) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [raise_in, interrupt])
def test_an_exception_in_the_window_leaves_nothing_installed_after_stop(
    failure: Callable[[nn.Module, torch.Tensor], None],
) -> None:
    model, x = make_net()
    before, objects = torch_attributes(), hooks_and_attributes(model)
    debugger = start(level="mix")
    debugger.start(model)
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        failure(model, x)
    debugger.stop()
    assert changed(before) == [] and hooks_and_attributes(model) == objects


def test_hooks_on_the_recorded_graph_are_inert_after_step() -> None:
    debugger = start(level="mix", task="tensor")
    model, x = make_net()
    debugger.start(model)
    loss = model(x).square().sum()
    debugger.stop()
    debugger.step()
    recorded = (DUMP / "step0" / "rank" / "dump.json").read_bytes()
    loss.backward()
    assert (DUMP / "step0" / "rank" / "dump.json").read_bytes() == recorded
    assert all(parameter.grad is not None for parameter in model.parameters())
