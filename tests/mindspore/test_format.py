"""The formats, byte for byte: dump.json, construct.json, stack.json, debug.json and their parts are golden files.

To write them anew after an intended change: WRITE_GOLDEN=1 python -m pytest tests/mindspore/test_format.py
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import mindspore
import pytest

from tests.integration.script import make_environment
from tests.warm import run_warm

GOLDEN = Path(__file__).parent / "golden"
PROGRAM = Path(__file__).with_name("golden_program.py")
MINDSPORE = str(Path(mindspore.__file__).parent)
FOLDER = TemporaryDirectory(prefix="golden")
"""For all tests here: the program runs once for each task."""
WHOLE = ["dump.json", "construct.json", "stack.json", "debug.json"]
PARTS = ["dump.json.part", "construct.json.part", "stack.json.part", "debug.json.part"]


@cache
def run_program(task: str) -> Path:
    dump_path = Path(FOLDER.name) / task
    (ended,) = run_warm("mindspore", Path.cwd(), [str(PROGRAM), task, str(dump_path)], make_environment())
    assert ended.returncode == 0, ended.stderr
    return dump_path


def normalise(text: str, dump_path: Path) -> str:
    """Without what differs from one machine to the next: where things lie, the lines of MindSpore, who ran it."""
    for place, name in ((PROGRAM.parent, "PROGRAM"), (MINDSPORE, "MINDSPORE"), (dump_path, "DUMP")):
        text = text.replace(str(place), name)
    text = re.sub(r', "File [^"]*/tests/warm_process\.py, line \d+, in <module>, \\n exec\(\*program\)"', "", text)
    return re.sub(r"(MINDSPORE/[\w/]+\.py), line \d+", r"\1, line N", text)


def check(produced: Path, golden: str, dump_path: Path) -> None:
    text = normalise(produced.read_text(), dump_path)
    path = GOLDEN / golden
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_file_is_byte_for_byte_the_golden_one(name: str, task: str) -> None:
    dump_path = run_program(task)
    check(dump_path / "step0" / "rank" / name, f"{task}.{name}", dump_path)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_byte_for_byte_the_golden_one(name: str) -> None:
    dump_path = run_program("statistics")
    check(dump_path / name, f"statistics.{name}", dump_path)


@pytest.mark.parametrize("name", ["dump.json", "construct.json", "debug.json"])
def test_a_part_is_the_whole_file_without_its_end(name: str) -> None:
    dump_path = run_program("statistics")
    part, whole = (dump_path / f"{name}.part").read_text(), (dump_path / "step0" / "rank" / name).read_text()
    assert whole.startswith(part)


def test_the_tensor_files_are_those_that_dump_json_and_debug_json_name() -> None:
    folder = run_program("tensor") / "step0" / "rank"
    named = re.findall(
        r'"data_name": "([^"]+)"', (folder / "dump.json").read_text() + (folder / "debug.json").read_text()
    )
    assert sorted(named) == sorted(path.name for path in (folder / "dump_tensor_data").iterdir())
    assert "Cell.Tiny.forward.0.kwargs.pair.0.npy" in named and "point_grad.0.debug.out.0.npy" in named


def test_a_value_that_has_several_names_is_stored_once() -> None:
    folder = run_program("tensor") / "step0" / "rank" / "dump_tensor_data"
    inodes = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert inodes["Functional.relu.0.forward.output.0.npy"] == inodes["Tensor.__mul__.0.forward.input.0.npy"]
    assert len(set(inodes.values())) < 0.6 * len(inodes)


def test_run_json_holds_the_circumstances_as_strict_json() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    run = json.loads((run_program("statistics") / "step0" / "rank" / "run.json").read_text(), parse_constant=refuse)
    assert (
        run["complete"] is True
        and run["framework"] == "mindspore"
        and run["versions"]["mindspore"] == mindspore.__version__
    )
    assert {"devices", "settings", "environment", "command", "host", "pid", "started"} <= run.keys()
    settings = run["settings"]
    assert settings["deterministic"] == "OFF" and settings["runtime_num_threads"] > 0
    assert settings["inter_op_parallel_num"] == 0 and settings["threads_num_is_set"] is False
    assert run["coverage"].keys() == {"seen", "recorded", "filtered", "excluded", "failed", "stale", "unseen"} | {
        "recomputed",
        "recomputed_differently",
    }
    assert run["coverage"]["failed"] == 0 and run["coverage"]["recorded"] > 10


def test_files_and_folders_are_for_their_owner_only() -> None:
    dump_path = run_program("tensor") / "step0"
    modes = {path.stat().st_mode & 0o077 for path in [dump_path, *dump_path.rglob("*")]}
    assert modes == {0}


def test_no_part_and_no_temporary_file_is_left() -> None:
    names = [path.name for path in (run_program("tensor") / "step0").rglob("*")]
    assert not [name for name in names if name.endswith((".part", ".tmp"))]
