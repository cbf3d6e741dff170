"""Inside a backward pass: what hooks and Functions do there is noticed, and compiled parts are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session


@pytest.mark.parametrize("stops_early", [False, True], ids=["inside", "after stop"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_gradient_that_a_hook_changes_through_data_is_read_again(
    tmp_path: Path, level: str, stops_early: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            between = self.first(x)

            def triple(gradient: torch.Tensor) -> None:
                gradient.data.mul_(3)

            between.register_hook(triple)
            return self.second(between)

    torch.manual_seed(0)
    model, x = Net(), torch.randn(3, 4, requires_grad=True)
    session = open_session(tmp_path, level=level, task="tensor")
    session.start(model)
    loss = model(x).sum()
    if stops_early:
        session.stop()
    loss.backward()
    session.close()
    dump = only_step(tmp_path)
    later, earlier = {
        "L0": ("Module.second.Linear.backward.0", "Module.first.Linear.backward.0"),
        "L1": ("Functional.linear.1.backward", "Functional.linear.0.backward"),
        "mix": ("Functional.linear.1.backward", "Module.first.Linear.backward.0"),
    }[level]
    before, after = dump.records[later]["output"][0], dump.records[earlier]["input"][0]
    assert after["Norm"] == pytest.approx(3 * before["Norm"])
    torch.testing.assert_close(dump.tensor(after), 3 * dump.tensor(before))


def test_calls_of_hooks_are_counted_as_calls_inside_backward(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    session = open_session(tmp_path, level="L1")
    session.start()
    y = torch.sin(x)
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()
    session.stop()
    assert session.recorder.coverage.unseen == {"call inside backward": 1}
    session.close()


@pytest.mark.parametrize("call", ["backward", "autograd.backward", "autograd.grad"])
def test_a_backward_that_raises_leaves_the_next_one_complete(tmp_path: Path, call: str) -> None:
    x = torch.ones(3, requires_grad=True)

    def refuse(_: Any) -> None:
        raise ValueError("the user's own")

    def run(loss: torch.Tensor) -> None:
        if call == "backward":
            loss.backward()
        elif call == "autograd.backward":
            torch.autograd.backward(loss)
        else:
            torch.autograd.grad(loss, x)

    session = open_session(tmp_path, level="L1")
    session.start()
    before = torch._C._len_torch_function_stack()
    y = torch.sin(x)
    y.register_hook(refuse)
    with pytest.raises(ValueError, match="the user's own"):
        run(y.sum())
    assert torch._C._len_torch_function_stack() == before
    run(torch.cos(x).sum())
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    assert "Torch.cos.0.backward" in only_step(tmp_path).records
    assert torch._C._len_torch_function_stack() == 0


def test_the_backward_of_a_compiled_function_is_not_looked_into(tmp_path: Path) -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(lambda x: torch.tanh(x @ weight).sum(), backend="aot_eager")
    x = torch.randn(2, 4, requires_grad=True)
    compiled(x).backward()
    session = open_session(tmp_path, level="L1")
    session.start()
    torch.autograd.backward(compiled(torch.sin(x)))
    session.stop()
    assert session.recorder.coverage.unseen == {"compiled region": 1}
    session.close()
