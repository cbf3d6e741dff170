"""`tensorprobe compare-dirs`, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import run_here
from tests.length import PATIENCE_SECONDS


def write(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good", a_0=np.ones(3), b_1=np.zeros((2, 2)))


def test_folders_that_agree_are_a_table_and_0(
    good: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    done = run_here(capfd, "compare-dirs", good, good)
    assert done.returncode == 0
    assert " The list of comparison results " in done.stdout
    assert f"The orig dir: {good} \n The target dir: {good}" in caplog.text
    assert "2/2" in done.stderr


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"a_0": np.full(3, 2.0)}, 1),
        ({"a_0": np.ones(4)}, 1),
        ({"c_2": np.ones(1)}, 1),
        ({"a_0": np.array([{}], object)}, 2),
        ({"a_0": np.array([{}], object), "b_1": np.ones((2, 2))}, 1),
    ],
    ids=["values", "shape", "another file", "unreadable", "unreadable and values"],
)
def test_the_exit_code_says_whether_they_differ_or_could_not_be_compared(
    good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any], code: int
) -> None:
    bad = write(tmp_path / "bad", a_0=np.ones(3), b_1=np.zeros((2, 2)))
    assert run_here(capfd, "compare-dirs", good, write(bad, **change)).returncode == code


def test_every_argument_is_an_option(good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "bad", x_0=np.array([1.2, 1.0, np.nan]), y_1=np.zeros((2, 2)))
    write(good, a_0=np.array([1.0, 1.0, np.nan]))
    options = ("--rtol", "0.2", "--atol", "0.1", "--equal-nan", "--by", "number", "--shape", "--processes", "1")
    done = run_here(capfd, "compare-dirs", good, bad, *options, "-o", tmp_path / "table.csv")
    assert done.returncode == 0
    assert "shape of orig" in done.stdout
    assert (tmp_path / "table.csv").read_text().count("True") == 2
    for left_out in ("--equal-nan", "--rtol"):
        kept = list(options)
        place = kept.index(left_out)
        del kept[place : place + (1 if left_out == "--equal-nan" else 2)]
        assert run_here(capfd, "compare-dirs", good, bad, *kept).returncode == 1


def test_shapes_and_a_file_of_names_pair_files_too(
    good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = write(tmp_path / "bad", x_0=np.ones(3), new_1=np.ones(5), y_2=np.zeros((2, 2)))
    done = run_here(capfd, "compare-dirs", good, bad, "--by", "shape")
    assert (done.returncode, done.stdout.count(" True "), done.stdout.count(" only in target ")) == (1, 2, 1)
    (tmp_path / "names.csv").write_text("a_0.npy,x_0.npy\n\nb_1,y_2\n")
    assert run_here(capfd, "compare-dirs", good, bad, "--map", tmp_path / "names.csv").returncode == 0


def test_json_is_all_that_is_on_stdout(good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "compare-dirs", good, good, "--json", "-o", tmp_path / "table.csv")
    assert done.returncode == 0
    assert [row["status"] for row in json.loads(done.stdout)["rows"]] == ["close", "close"]
    assert (tmp_path / "table.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gone", "good"), "orig_dir gone does not exist"),
        (("good", "good/a_0.npy"), "target_dir good/a_0.npy is a file"),
        (("good", "empty"), "target_dir empty holds no .npy file"),
        (("good", "other"), "no file of good (a_0.npy, b_1.npy) has a partner in other (z.npy)"),
        (("good", "good", "--map", "gone.csv"), "--map gone.csv cannot be read (No such file or directory)"),
        (("good", "good", "--map", "bad.csv"), "--map bad.csv, line 1: 3 names. Give two"),
        (("good", "good", "--map", "bad.csv", "--by", "shape"), "--map bad.csv and --by shape both pair the files"),
        (("good", "good", "--rtol", "-1"), "rtol is -1.0"),
        (("good", "good", "-o", "empty"), "output_file empty is a folder"),
        (("good", "good", "--json", "-o", "empty"), "output_file empty is a folder"),
    ],
)
@pytest.mark.usefixtures("good")
def test_a_wrong_command_says_what_to_do_and_is_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "other", z=np.ones(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.csv").write_text("a,b,c\n")
    done = run_here(capfd, "compare-dirs", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {words}" in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_has_seen_enough_leaves_the_exit_code_and_the_file(
    good: Path, tmp_path: Path, form: tuple[str, ...]
) -> None:
    bad = write(tmp_path / "bad", a_0=np.zeros(3), b_1=np.zeros((2, 2)))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tensorprobe", "compare-dirs", good, bad, "-o", tmp_path / "table.csv", *form]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_SECONDS)
    os.close(writing)
    assert done.returncode == 1 and (tmp_path / "table.csv").exists() and b"Traceback" not in done.stderr
