"""`debugger.save(variable, name)` in a program for MSAdapter."""

from __future__ import annotations

import json

import numpy as np

from tensorprobe.mindspore import PrecisionDebugger
from tests.msadapter.program import DUMP, torch

FOLDER = DUMP / "step0" / "rank"


def test_a_variable_and_its_gradient() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="debug", task="tensor")
    x = torch.ones(2, 3, requires_grad=True)
    y = x * 2
    debugger.save(y, "y")
    (y * y).sum().backward()
    debugger.step()
    data = json.loads((FOLDER / "debug.json").read_text())
    assert data["framework"] == "mindtorch"
    assert {"y.0.debug", "y_grad.0.debug"} <= set(data["data"])
    np.testing.assert_array_equal(np.load(FOLDER / "dump_tensor_data" / "y.0.debug.npy"), np.full((2, 3), 2.0))
    np.testing.assert_array_equal(np.load(FOLDER / "dump_tensor_data" / "y_grad.0.debug.npy"), np.full((2, 3), 4.0))


def test_nested_data_without_a_gradient() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="debug", task="tensor")
    debugger.save({"a": [torch.ones(2), 3], "b": "text"}, "point", save_backward=False)
    debugger.step()
    data = json.loads((FOLDER / "debug.json").read_text())["data"]
    assert data["point.0.debug"]["a"][1]["value"] == 3
    assert (FOLDER / "dump_tensor_data" / "point.0.debug.a.0.npy").exists()
    assert "point_grad.0.debug" not in data
