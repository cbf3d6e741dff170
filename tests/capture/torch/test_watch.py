"""`on_nonfinite`: the first call with NaN or Inf is named, its tensors are stored, and the program goes on or stops."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.errors import NonFiniteError
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.training import open_session


def record(tmp_path: Path, run: Callable[[], Any], action: str = "tensors", **options: Any) -> DumpOnDisk:
    model = options.pop("model", None)
    session = open_session(tmp_path, on_nonfinite=action, **{"level": "L1", **options})
    session.start(model)
    run()
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    return only_step(tmp_path)


def stored(dump: DumpOnDisk) -> set[str]:
    folder = dump.folder / "dump_tensor_data"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"]


def test_the_tensors_of_the_first_call_and_its_inputs_are_stored_and_it_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.tensor([1.0, -1.0, 4.0])

    def run() -> None:
        y = torch.sqrt(x * 1)
        torch.sin(y) + y

    dump = record(tmp_path, run)
    assert stored(dump) == {"Torch.sqrt.0.forward.input.0.pt", "Torch.sqrt.0.forward.output.0.pt"}
    fields = dump.records["Torch.sqrt.0.forward"]
    assert torch.equal(dump.tensor(fields["input_args"][0]), x)
    assert dump.tensor(fields["output"][0])[1].isnan()
    (message,) = said(caplog)
    assert message.startswith("NaN came out of Torch.sqrt.0.forward (output.0: 1), which was given none. File ")
    assert "test_watch.py" in message and "y = torch.sqrt(x * 1)" in message and message.endswith("The program goes on")
    assert "Torch.sin.0.forward" in dump.records  # it goes on


def test_stop_raises_at_the_call_and_the_dump_is_whole(tmp_path: Path) -> None:
    x = torch.zeros(2)
    session = open_session(tmp_path, on_nonfinite="stop", level="L1")
    session.start()
    with pytest.raises(NonFiniteError, match=r"NaN came out of Tensor\.div\.0\.forward \(output\.0: 2\)"):
        torch.sin(x / x)
    session.close()
    dump = only_step(tmp_path)
    assert list(dump.records) == ["Tensor.div.0.forward"]
    assert stored(dump) == {
        "Tensor.div.0.forward.input.0.pt",
        "Tensor.div.0.forward.input.1.pt",
        "Tensor.div.0.forward.output.0.pt",
    }


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_stop_raises_out_of_a_module_and_through_backward(tmp_path: Path, level: str) -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x)

    model = nn.Sequential(nn.Identity(), Root())
    session = open_session(tmp_path, on_nonfinite="stop", level=level)
    session.start(model)
    loss = model(torch.zeros(3, requires_grad=True)).sum()  # the derivative of sqrt at 0 is infinite
    with pytest.raises(NonFiniteError, match=r"Inf came out of .*backward"):
        loss.backward()
    model(torch.full((3,), -1.0))  # only the first is looked for
    session.close()
    assert any(name.endswith("output.0.pt") and "backward" in name for name in stored(only_step(tmp_path)))


def test_an_input_that_the_call_changes_is_stored_as_it_was(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 0.0])

    def run() -> None:
        y = x * 1
        y.log_().add_(1)

    dump = record(tmp_path, run)
    fields = dump.records["Tensor.log_.0.forward"]
    assert torch.equal(dump.tensor(fields["input_args"][0]), x)
    assert dump.tensor(fields["output"][0])[1] == -math.inf


def test_an_input_that_a_module_changed_unforeseen_is_not_stored_as_something_else(tmp_path: Path) -> None:
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sub_(3).sqrt()

    model = Changing()
    dump = record(tmp_path, lambda: model(torch.ones(2)), level="L0", model=model)
    given = dump.records["Module.Changing.forward.0"]["input_args"][0]
    assert given["Max"] == 1 and "data_name" not in given
    assert "changed by the call" in given["note"]


@pytest.mark.parametrize(
    "mask",
    [
        lambda: torch.full((3, 3), -math.inf).triu(1),
        lambda: torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf),
        lambda: torch.zeros(3, 3).masked_fill_(torch.ones(3, 3).triu(1).bool(), float("-inf")),
        lambda: torch.tensor([[0.0, -math.inf]]),
        lambda: torch.nn.Transformer.generate_square_subsequent_mask(3),
    ],
)
def test_masks_of_infinity_are_sound(tmp_path: Path, mask: Callable[[], torch.Tensor]) -> None:
    outside = mask()
    dump = record(tmp_path, lambda: (F.softmax(torch.ones_like(mask()) + mask(), -1), outside + 1))
    assert stored(dump) == set()


def test_nan_that_comes_with_the_data_is_found_where_it_enters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = torch.tensor([1.0, math.nan])
    record(tmp_path, lambda: data * 2)
    (message,) = said(caplog)
    assert message.startswith("NaN was given to Tensor.mul.0.forward (input.0: 1); no call recorded before had any")


def test_undefined_memory_is_not_looked_at(tmp_path: Path) -> None:
    def run() -> None:
        memory = torch.empty(1000)
        memory.untyped_storage().copy_(garbage)  # what happens to be there
        memory.fill_(1.0).add_(2.0)

    garbage = torch.full((1000,), math.nan).untyped_storage()
    assert stored(record(tmp_path, run)) == set()


def test_where_inputs_are_not_recorded_infinity_may_have_been_given(tmp_path: Path) -> None:
    mask = torch.full((2,), -math.inf)
    assert stored(record(tmp_path, lambda: mask + 1, data_mode=["output"])) == set()
    assert stored(record(tmp_path / "nan", lambda: mask - mask, data_mode=["output"])) != set()


def test_infinity_in_an_array_is_given_on_purpose(tmp_path: Path) -> None:
    assert stored(record(tmp_path, lambda: torch.tensor(np.array([1.0, np.inf])))) == set()


def test_training_is_bit_identical_while_it_is_watched(tmp_path: Path) -> None:
    def train(action: str | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        x = torch.randn(8, 4, requires_grad=True)
        if action is not None:
            session = open_session(tmp_path, on_nonfinite=action, level="mix")
            session.start(model)
        loss = model(x).square().sum()
        loss.backward()
        if action is not None:
            session.close()
        assert x.grad is not None
        return [loss.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[list-item]

    assert all(torch.equal(a, b) for a, b in zip(train(None), train("tensors"), strict=True))


def test_an_input_that_has_its_file_already_is_not_said_to_have_none(tmp_path: Path) -> None:
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sub_(3).sqrt()

    model = Changing()
    dump = record(tmp_path, lambda: model(torch.ones(2)), level="L0", model=model, task="tensor")
    given = dump.records["Module.Changing.forward.0"]["input_args"][0]
    assert "note" not in given and torch.equal(dump.tensor(given), torch.ones(2))


def test_with_task_tensor_nothing_is_stored_twice(tmp_path: Path) -> None:
    x = torch.tensor([-1.0])
    dump = record(tmp_path, lambda: torch.sqrt(x), task="tensor")
    assert stored(dump) == {"Torch.sqrt.0.forward.input.0.pt", "Torch.sqrt.0.forward.output.0.pt"}
