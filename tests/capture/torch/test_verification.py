"""Verify mode finds what was written past torch, reports the new value, says so once and counts it."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.session import Session
from tensorprobe.capture.torch.verification import VARIABLE, VerifyingReader, is_same_number
from tests.capture.torch.dump import only_step
from tests.capture.torch.models import MODELS
from tests.capture.torch.training import open_session


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


def write_past_torch(session: Session) -> nn.Parameter:
    """A pointer from before the window: torch cannot know that it is used."""
    weight = nn.Parameter(torch.ones(4, 8))
    address = weight.data_ptr()
    session.start()
    torch.relu(torch.ones(2, 2))
    for _ in range(3):
        torch.clone(weight)
        torch.clone(weight.t())
        ctypes.memset(address, 0, 4)
        address += 4
    session.close()
    return weight


def norms(tmp_path: Path) -> list[float]:
    records = only_step(tmp_path).records
    return [records[f"Torch.clone.{number}.forward"]["input_args"][0]["Norm"] ** 2 for number in range(6)]


WAYS: list[dict[str, Any]] = [{}, {"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "hash"}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_new_value_is_recorded_and_the_old_one_counted(
    tmp_path: Path, verify: None, way: dict[str, Any], stale_values: list[str]
) -> None:
    write_past_torch(open_session(tmp_path, level="L1", **way))
    assert norms(tmp_path) == pytest.approx([32, 32, 31, 31, 30, 30])
    assert only_step(tmp_path).read("run.json")["coverage"]["stale"] == 2
    assert [line.split(":")[0] for line in stale_values] == [f"Torch.clone.{n}.forward.input.0" for n in (2, 4)]
    if way == {"task": "tensor"}:
        step = only_step(tmp_path)
        leaf = step.records["Torch.clone.5.forward"]["input_args"][0]
        assert step.tensor(leaf).sum() == 30
    stale_values.clear()


def test_it_is_said_once_per_kind_of_call(
    tmp_path: Path, verify: None, stale_values: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "tensorprobe"):
        write_past_torch(open_session(tmp_path, level="L1"))
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith(
        "Torch.clone.2.forward.input.0 was taken as known and had changed unnoticed: Mean 1.0 is 0.96875"
    )
    stale_values.clear()


def test_without_it_nothing_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0"):
        if value is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, value)
        session = open_session(tmp_path / str(value), level="L1")
        assert not isinstance(session.recorder.reader, VerifyingReader)
        session.close()


def test_the_statistics_of_a_permuted_view_are_verified_too(
    tmp_path: Path, verify: None, stale_values: list[str]
) -> None:
    weight = nn.Parameter(torch.ones(4, 8))
    address = weight.data_ptr()
    session = open_session(tmp_path, level="L1")
    session.start()
    torch.relu(torch.ones(2, 2))
    torch.clone(weight)
    ctypes.memset(address, 0, 4)
    torch.clone(weight.t())
    session.close()
    leaf = only_step(tmp_path).records["Torch.clone.1.forward"]["input_args"][0]
    assert leaf["Min"] == 0.0
    assert len(stale_values) == 1
    stale_values.clear()


def test_a_change_that_leaves_the_statistics_alone_is_found(
    tmp_path: Path, verify: None, stale_values: list[str]
) -> None:
    weight = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    address = weight.data_ptr()
    session = open_session(tmp_path, level="L1", task="tensor")
    session.start()
    torch.relu(torch.ones(2, 2))
    torch.clone(weight)
    content = (ctypes.c_float * 4).from_address(address)
    content[0], content[3] = 0.0, 1.0
    torch.clone(weight)
    session.close()
    step = only_step(tmp_path)
    stored = step.tensor(step.records["Torch.clone.1.forward"]["input_args"][0])
    assert torch.equal(stored, torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    assert stale_values == ["Torch.clone.1.forward.input.0: the order or the bits of its elements"]
    stale_values.clear()


def test_a_file_that_holds_something_else_is_not_linked(tmp_path: Path, verify: None, stale_values: list[str]) -> None:
    session = open_session(tmp_path, level="L1", task="tensor")
    session.start()
    x = torch.relu(torch.ones(2, 3))
    session._queue.drain()
    torch.save(torch.zeros(2, 3), only_step(tmp_path).folder / "dump_tensor_data" / "Torch.relu.0.forward.output.0.pt")
    torch.exp(x)
    session.close()
    step = only_step(tmp_path)
    assert torch.equal(step.tensor(step.records["Torch.exp.0.forward"]["input_args"][0]), torch.ones(2, 3))
    assert stale_values == ["Torch.relu.0.forward.output.0.pt: the content of the file"]
    stale_values.clear()


@pytest.fixture(params=["gpt", "cnn", "lstm"])
def training(request: pytest.FixtureRequest) -> Iterator[Any]:
    torch.manual_seed(7)
    return MODELS[request.param]()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.some(3)
def test_every_known_value_of_a_training_is_still_true(
    tmp_path: Path, verify: None, training: Any, is_fused: bool, way: dict[str, Any]
) -> None:
    model, loss_of, batches = training
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=is_fused)
    session = open_session(tmp_path, level="mix", **way)
    session.start(model)
    for batch in batches[:2]:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    reader = session.recorder.reader
    assert isinstance(reader, VerifyingReader)
    assert reader.hits > 50
    session.close()
    assert only_step(tmp_path).read("run.json")["coverage"]["stale"] == 0


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        (1.0, 1.0, True),
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.001, False),
        (float("nan"), float("nan"), True),
        (float("inf"), 1.0, False),
        (None, 1.0, False),
        (3, 4, False),
        ("empty", None, False),
    ],
)
def test_what_counts_as_the_same_number(before: Any, now: Any, is_same: bool) -> None:
    assert is_same_number(before, now, 1.0) == is_same
