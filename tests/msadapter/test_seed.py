"""The example of msprobe's page on MSAdapter gives all its records, at every level, as statistics and as tensors."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.msadapter.program import DUMP, DumpOnDisk, dump_of

SCRIPT = Path(__file__).with_name("seed_program.py")
MODULES = ["Module.linear1.Linear", "Module.linear2.Linear", "Module.Net"]
APIS = ["Functional.linear.0", "Functional.linear.1", "Functional.relu.0"]
OF_MODULES = {f"{stem}.{direction}.0" for stem in MODULES for direction in ("forward", "backward")}
OF_APIS = {f"{stem}.{direction}" for stem in APIS for direction in ("forward", "backward")}
EXPECTED = {"L0": OF_MODULES, "L1": OF_APIS, "mix": OF_MODULES | OF_APIS}
"""The example asks for the gradient of its input only: those of the parameters are not computed."""


def run_example(level: str, task: str) -> list[DumpOnDisk]:
    Path("config.json").write_text(json.dumps({"task": task, "level": level, "dump_path": str(DUMP)}))
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return [dump_of(step) for step in range(3)]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_every_step_has_all_records(level: str, task: str) -> None:
    for dump in run_example(level, task):
        assert set(dump.records) == EXPECTED[level]
        assert dump.document["framework"] == "mindtorch"
        assert dump.document["level"] == level
        assert dump.document["task"] == task


def test_the_files_have_the_names_of_the_page() -> None:
    dump = run_example("mix", "tensor")[0]
    assert {
        "Functional.linear.0.forward.input.0.npy",
        "Functional.linear.1.backward.output.0.npy",
        "Module.linear1.Linear.forward.0.input.0.npy",
        "Module.linear1.Linear.forward.0.parameters.bias.npy",
    } <= dump.files()


def test_the_files_hold_what_was_computed() -> None:
    dump = run_example("mix", "tensor")[0]
    record = dump.records["Module.linear1.Linear.forward.0"]
    x, y = dump.array(record["input_args"][0]), dump.array(record["output"][0])
    weight, bias = (dump.array(record["parameters"][name]) for name in ("weight", "bias"))
    np.testing.assert_allclose(x @ weight.T + bias, y, rtol=1e-5, atol=1e-5)
    gradients = dump.records["Module.linear1.Linear.backward.0"]
    arriving, leaving = (dump.array(gradients[key][0]) for key in ("input", "output"))
    np.testing.assert_allclose(arriving @ weight, leaving, rtol=1e-5, atol=1e-5)


def test_the_page_says_that_nesting_is_empty_at_l1() -> None:
    dump = run_example("L1", "statistics")[0]
    assert dump.read("construct.json") == {}


def test_calls_are_inside_of_their_modules() -> None:
    dump = run_example("mix", "statistics")[0]
    parents = dump.read("construct.json")
    assert parents["Functional.linear.1.forward"] == "Module.linear2.Linear.forward.0"
    assert parents["Module.linear2.Linear.forward.0"] == "Module.Net.forward.0"


def test_it_runs_as_a_program_of_its_own() -> None:
    Path("config.json").write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(DUMP)}))
    source = Path(__file__).parents[2] / "src"
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(source)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(dump_of(2).records) == OF_APIS
