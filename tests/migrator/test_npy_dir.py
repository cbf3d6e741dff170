"""`compare_npy_dir` as the manual calls it, and what it says when it is called wrongly."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe import UsageError, migrator
from tensorprobe.migrator import (
    compare_npy_dir,
    get_name_map_list_by_name,
    get_name_map_list_by_number,
    get_name_map_list_by_shape_edit_distance,
)
from tests.length import PATIENCE_SECONDS, wait_until
from tests.report.test_npy_dir import TABLE, TABLE_WITH_SHAPES

SAVED = {
    "0_input.npy": np.array([[0.2, 0.5, 0.2]], np.float32),
    "1_dense.npy": np.zeros((1, 2), np.float32),
    "2_dense_backward.npy": np.array([[-0.5, 0.5]], np.float32),
}
SCRIPT = """
import tensorprobe as ts

ts.migrator.compare_npy_dir('ms_ts_save', 'torch_ts_save')
"""
SIGNATURES = {
    "compare_npy_dir": "(orig_dir, target_dir, rtol=0.0001, atol=0.0001, equal_nan=False, *, name_map_list=None, "
    "compare_shape=False, output_file=None, num_processes=None)",
    "get_name_map_list_by_name": "(orig_dir, target_dir)",
    "get_name_map_list_by_number": "(orig_dir, target_dir, sort_key=None)",
    "get_name_map_list_by_shape_edit_distance": "(orig_dir, target_dir, *, del_cost=1, ins_cost=1, rep_cost=5)",
}


def write(folder: str, arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two folders of the manual, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write("ms_ts_save", SAVED)
    write("torch_ts_save", SAVED)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_are_those_of_the_manual(name: str) -> None:
    parameters = inspect.signature(getattr(migrator, name)).parameters.values()
    bare = inspect.Signature([one.replace(annotation=one.empty) for one in parameters])
    assert str(bare) == SIGNATURES[name]


def test_a_program_sees_what_the_manual_shows() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tensorprobe.__file__).parents[1]), "COLUMNS": "60"}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert (ended.returncode, ended.stdout) == (0, TABLE + "\n")
    first, second, third, bar = ended.stderr.split("\n", 3)
    assert first.endswith(" - tensorprobe.migrator - WARNING - [*User Attention*] The compare directory information:")
    assert (second, third) == (" The orig dir: ms_ts_save ", " The target dir: torch_ts_save")
    assert "100%|█" in bar and "| 3/3 [" in bar


def test_all_options_of_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare_npy_dir(
        "ms_ts_save",
        Path("torch_ts_save"),
        rtol=1e-3,
        atol=1e-3,
        equal_nan=True,
        compare_shape=True,
        output_file="./compare.csv",
    )
    assert found
    assert capsys.readouterr().out == TABLE_WITH_SHAPES + "\n"
    assert len(Path("compare.csv").read_text().splitlines()) == 4


def test_a_program_that_configures_logging_gets_the_line_there(caplog: pytest.LogCaptureFixture) -> None:
    compare_npy_dir("ms_ts_save", "torch_ts_save")
    assert caplog.record_tuples == [
        (
            "tensorprobe.migrator",
            logging.WARNING,
            "[*User Attention*] The compare directory information:\n The orig dir: ms_ts_save \n"
            " The target dir: torch_ts_save",
        )
    ]


def test_files_of_one_side_and_other_shapes_are_rows_and_the_result_is_false(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write("torch_ts_save", {"1_dense.npy": np.zeros((2, 1)), "10_late.npy": np.zeros(1)})
    Path("torch_ts_save/0_input.npy").write_bytes(b"\x93NUMPY\x01")
    found = compare_npy_dir("ms_ts_save", "torch_ts_save")
    out = capsys.readouterr().out
    assert not found
    assert [row.candidate_name for row in found] == [*SAVED, "10_late.npy"]
    for words in ("target is cut off", "Shape is inconsistent", "True", "only in target"):
        assert f" {words} " in out
    assert "1 file has no partner: 10_late.npy" in caplog.text


def test_the_ranks_and_steps_of_distributed_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    for side, change in (("a", 0), ("b", 1)):
        write(side, {"step0/rank0/x_float32_0.npy": np.ones(2), "step0/rank1/x_float32_0.npy": np.ones(2) + change})
    found = compare_npy_dir("a", "b")
    assert [(row.reference_name, row.status) for row in found] == [
        ("step0/rank0/x_float32_0.npy", "close"),
        ("step0/rank1/x_float32_0.npy", "different"),
    ]
    assert " step0/rank1/x_float32_0.npy " in capsys.readouterr().out


def test_the_spelling_of_mindspore_is_accepted() -> None:
    write("graph", {"input_float32_0.npy": SAVED["0_input.npy"], "dense_float32_1.npy": SAVED["1_dense.npy"]})
    write("eager", {name: SAVED[name] for name in ("0_input.npy", "1_dense.npy")})
    assert compare_npy_dir("graph", "eager")
    assert [row.reference_name for row in compare_npy_dir("eager", "graph")] == ["0_input.npy", "1_dense.npy"]


def test_pairs_can_be_given_with_or_without_their_ending() -> None:
    pairs = [("0_input", "0_input.npy"), ["1_dense.npy", "2_dense_backward"], ("2_dense_backward.npy", None)]
    found = compare_npy_dir("ms_ts_save", "torch_ts_save", name_map_list=pairs)  # type: ignore[arg-type]
    assert [row.status for row in found] == ["close", "different", "not comparable"]


def test_pairs_by_name_by_number_and_by_shape() -> None:
    write("other", {"3_a.npy": np.zeros((1, 3)), "11_b.npy": np.zeros((1, 2))})
    by_name = get_name_map_list_by_name("ms_ts_save", "torch_ts_save")
    assert by_name == [(name, name) for name in SAVED]
    first, second, third = SAVED
    pairs = get_name_map_list_by_number("ms_ts_save", "other")
    assert pairs == [(first, "3_a.npy"), (second, "11_b.npy"), (third, None)]
    pairs = get_name_map_list_by_number("ms_ts_save", "other", sort_key=lambda name: -len(name))
    assert pairs[0] == (third, "11_b.npy")
    pairs = get_name_map_list_by_shape_edit_distance("ms_ts_save", "other")
    assert pairs == [(first, "3_a.npy"), (second, "11_b.npy"), (third, None)]
    assert len(compare_npy_dir("ms_ts_save", "other", name_map_list=pairs)) == 3


def test_the_costs_decide_whether_other_shapes_are_paired() -> None:
    write("other", {"0_a.npy": np.zeros(5), "1_b.npy": np.zeros(6), "2_c.npy": np.zeros(7)})
    replaced = get_name_map_list_by_shape_edit_distance("ms_ts_save", "other", rep_cost=1)
    assert replaced == list(zip(SAVED, ["0_a.npy", "1_b.npy", "2_c.npy"], strict=True))
    assert all(None in pair for pair in get_name_map_list_by_shape_edit_distance("ms_ts_save", "other"))


def test_what_is_below_atol_is_said_to_be_no_proof(caplog: pytest.LogCaptureFixture) -> None:
    write("ms_ts_save", {"3_grad.npy": np.array([1e-8, 2e-8])})
    write("torch_ts_save", {"3_grad.npy": np.array([-1e-8, 3e-8])})
    assert not compare_npy_dir("ms_ts_save", "torch_ts_save")
    assert "Close only because all values are below atol, and taken as different: 3_grad.npy." in caplog.text


MISUSES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "missing": (("gone", "torch_ts_save"), {}, "orig_dir gone does not exist. Give a folder of .npy files."),
    "file": (
        ("ms_ts_save", "torch_ts_save/0_input.npy"),
        {},
        "target_dir torch_ts_save/0_input.npy is a file. Give the folder that it lies in.",
    ),
    "nothing": ((None, "torch_ts_save"), {}, "orig_dir is None. Give the path of a folder of .npy files."),
    "empty": (("ms_ts_save", "empty"), {}, "target_dir empty holds no .npy file."),
    "dump": (("ms_ts_save", "dump"), {}, "holds no .npy file. It is a dump: compare it with `tensorprobe compare`."),
    "no pairs": (("ms_ts_save", "others"), {}, "no file of ms_ts_save .* has a partner in others .9_a.npy.. Pair them"),
    "pairs": (
        ("ms_ts_save", "torch_ts_save"),
        {"name_map_list": ["x"]},
        "name_map_list holds 'x'. Give pairs of names",
    ),
    "rtol": (("ms_ts_save", "torch_ts_save", -1.0), {}, "rtol is -1.0"),
    "csv": (("ms_ts_save", "torch_ts_save"), {"output_file": "empty"}, "output_file empty is a folder"),
    "csv type": (("ms_ts_save", "torch_ts_save"), {"output_file": 3}, "output_file is 3. Give the path of a file"),
}


@pytest.mark.parametrize("kind", MISUSES)
def test_a_wrong_call_says_what_to_do(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("dump").mkdir()
    Path("dump/dump.json").touch()
    write("others", {"9_a.npy": np.zeros(1)})
    arguments, options, words = MISUSES[kind]
    with pytest.raises(UsageError, match=words):
        compare_npy_dir(*arguments, **options)
    assert capsys.readouterr().out == ""


def test_ctrl_c_leaves_no_worker() -> None:
    for side in ("a", "b"):
        Path(side).mkdir()
        for number in range(4):
            file = np.lib.format.open_memmap(f"{side}/{number}.npy", "w+", np.dtype("f4"), (1_000_000_000,))
            file[:1000] = side == "a"
            del file
    script = "import tensorprobe\ntensorprobe.migrator.compare_npy_dir('a', 'b', num_processes=2)"
    environment = {**os.environ, "PYTHONPATH": str(Path(tensorprobe.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE)
    wait_until(lambda: len(find_children(process.pid)) == 2)
    workers = find_children(process.pid)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert b"KeyboardInterrupt" in stderr
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def find_children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return {int(child) for task in tasks for child in task.read_text().split()}
    except OSError:
        return set()
