"""Against a dump of TroubleShooter, a run is taken without what that dump cannot have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.filtered_run import filter_alike
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tests.compare.recording import Recording

X = np.ones((2, 3), np.float32)
FORWARD = [
    ["Functional_linear_0_forward_input.0", 1, [], "torch.float32", [2, 3], [1.0, 1.0, 1.0]],
    ["Functional_linear_0_forward_output", 1, [], "torch.float32", [2, 3], [1.0, 1.0, 1.0]],
]
NUMBER = ["Functional_linear_0_forward_input.1", 1, [], "<class 'int'>", [], [1, 1, 1]]
GRADIENT_OF_INPUT = ["Functional_linear_0_backward_output.0", 1, [], "torch.float32", [2, 3], [1.0, 1.0, 1.0]]


def foreign(folder: Path, *lines: list[Any]) -> Run:
    (folder / "rank0").mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in (*FORWARD, *lines))
    (folder / "rank0" / "torch_api_dump_info.pkl").write_text(text)
    return read_run(next(iter(open_dump(folder).ranks())))


def ours(folder: Path) -> Run:
    run = Recording("statistics", "mix")
    x = run.data(X)
    with run.module("fc", "Linear", x, parameters={"weight": run.data(X)}) as module:
        module.output = run.api("Functional.linear", x, 7, output=X)
    run.api("Torch.argmax", x, output=np.array([1, 2]))
    run.api("Torch.sum", output=np.float32(6.0))
    run.api("Tensor.narrow", output=X[:0])
    run.backward("Functional.linear.0", run.data(X), X)
    return read_run(next(iter(open_dump(run.write(folder)).ranks())))


def slots(run: Run) -> dict[str, list[str]]:
    return {call.name: [slot.slot for slot in call.slots] for call in run.calls}


@pytest.mark.parametrize("is_reference", [True, False])
def test_single_numbers_whole_numbers_and_state_are_left_out(tmp_path: Path, is_reference: bool) -> None:
    pair = foreign(tmp_path / "theirs"), ours(tmp_path / "ours")
    found = filter_alike(*pair)[1] if is_reference else filter_alike(*pair[::-1])[0]
    assert slots(found) == {
        "Functional.linear.0.forward": ["input.0", "output.0"],
        "Module.fc.Linear.forward.0": ["input.0", "output.0"],
        "Torch.argmax.0.forward": ["input.0"],
        "Functional.linear.0.backward": ["input.0"],
    }
    assert list(found.by_name) == list(slots(found))


def test_a_dump_that_has_numbers_was_not_filtered(tmp_path: Path) -> None:
    _, found = filter_alike(foreign(tmp_path / "theirs", NUMBER), ours(tmp_path / "ours"))
    assert slots(found)["Functional.linear.0.forward"] == ["input.0", "input.1", "output.0"]
    assert slots(found)["Torch.argmax.0.forward"] == ["input.0", "output.0"]
    assert slots(found)["Functional.linear.0.backward"] == ["input.0"]


def test_gradients_of_inputs_are_kept_where_the_dump_has_some(tmp_path: Path) -> None:
    _, found = filter_alike(foreign(tmp_path / "theirs", GRADIENT_OF_INPUT), ours(tmp_path / "ours"))
    assert slots(found)["Functional.linear.0.backward"] == ["input.0", "output.0"]


def test_two_runs_of_one_kind_stay_as_they_are(tmp_path: Path) -> None:
    for pair in (
        (ours(tmp_path / "a"), ours(tmp_path / "b")),
        (foreign(tmp_path / "c"), foreign(tmp_path / "d", NUMBER)),
    ):
        assert filter_alike(*pair) == pair
