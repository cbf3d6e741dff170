"""`tensorprobe convert`, as a user types it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import run_command, run_here
from tests.store.print_bytes import array_value, text_value
from tests.store.test_tensor_file import plain_values

TENSOR_FILES = Path(__file__).parents[1] / "store" / "tensor_file"
EXPECTED = json.loads((TENSOR_FILES / "expected.json").read_text())
FOUR = np.array([2, 3, 4, 5], np.float32)


def test_a_print_file(tmp_path: Path) -> None:
    (tmp_path / "print").write_bytes(text_value("_TS_SAVE_NAME:add") + array_value(FOUR))
    done = run_command("convert", tmp_path / "print", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"1 file written to {tmp_path / 'out'}\n", "")
    assert np.array_equal(np.load(tmp_path / "out" / "0_add.npy"), FOUR)


@pytest.mark.parametrize("file", [file for file, entry in EXPECTED.items() if "values" in entry])
def test_a_file_of_torch_keeps_its_numbers(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dtype = EXPECTED[file]["dtype"]
    assert run_here(capsys, "convert", TENSOR_FILES / file, tmp_path).returncode == 0
    array = np.load(tmp_path / f"{Path(file).stem}.npy")
    assert array.dtype.name == (
        "complex64" if dtype == "complex32" else re.sub(r"bfloat16|float8_.*", "float32", dtype)
    )
    np.testing.assert_array_equal(plain_values(array), EXPECTED[file]["values"])


@pytest.mark.parametrize("file", ["sparse-coo.pt", "sparse-csr.pt", "quantized.pt"])
def test_what_is_no_plain_array_is_refused_and_said(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "convert", TENSOR_FILES / file, tmp_path)
    assert done.returncode == 2 and "sparse, quantized or packed" in done.stderr and "compared" not in done.stderr


def test_a_folder_of_torch_files_with_its_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in" / "rank0").mkdir(parents=True)
    shutil.copy(TENSOR_FILES / "float32.pt", tmp_path / "in" / "x.y.pt")
    shutil.copy(TENSOR_FILES / "int64.pt", tmp_path / "in" / "rank0" / "z.pt")
    (tmp_path / "in" / "note.txt").write_text("")
    done = run_here(capsys, "convert", tmp_path / "in", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"2 files written to {tmp_path / 'out'}\n")
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.npy")) == [
        "rank0/z.npy",
        "x.y.npy",
    ]


def test_one_file_that_cannot_be_read_is_2_and_the_others_are_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pt").write_bytes(b"PK\x03\x04")
    shutil.copy(TENSOR_FILES / "float32.pt", tmp_path / "in" / "b.pt")
    done = run_here(capsys, "convert", tmp_path / "in", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, f"1 file written to {tmp_path / 'out'}\n")
    assert done.stderr == f"error: {tmp_path / 'in' / 'a.pt'} is cut off\n"


def test_what_is_not_there_or_not_known_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    for name, words in (
        ("missing", "is missing"),
        ("empty", "holds no .pt file"),
        ("text", "is neither a .pt file nor"),
    ):
        done = run_here(capsys, "convert", tmp_path / name, tmp_path / "out")
        assert done.returncode == 2 and words in done.stderr


def test_a_pickle_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    done = run_here(capsys, "convert", tmp_path / "x.pt", tmp_path / "out")
    assert done.returncode == 2 and "holds a pickle, not a tensor" in done.stderr


def test_the_help_shows_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "convert", "--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("tensorprobe convert print_file", "dump_path npy_files", "Exit codes"))
