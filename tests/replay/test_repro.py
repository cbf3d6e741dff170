"""`tensorprobe repro`: one call as a script that needs torch alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.command import run_here
from tests.length import PATIENCE_SECONDS
from tests.replay.program import make_program, record

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dump")
    return {name: record(folder / name, *make_program(name)) for name in ("attention", "convnet", "in_place", "router")}


def run_script(script: Path) -> str:
    """In a Python that cannot import tensorprobe."""
    hidden = "import sys; sys.modules['tensorprobe'] = None; import runpy; runpy.run_path(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", hidden, script],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return done.stdout


CALLS = {
    "attention": ("Functional.linear.0.forward", {"output.0", *(f"gradient of input.{n}" for n in range(3))}),
    "convnet": ("Functional.conv2d.0.forward", {"output.0", "gradient of input.1", "gradient of input.2"}),
    "in_place": ("Tensor.__getitem__.0.forward", {"output.0"}),
    "router": ("Tensor.topk.0.forward", {"output.0"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_prints_what_was_recorded_against_the_call_here_and_against_float64(
    name: str, dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    call, values = CALLS[name]
    done = run_here(capsys, "repro", dumps[name], call, "-o", tmp_path / "bug")
    assert done.returncode == 0, done.stderr
    printed = run_script(tmp_path / "bug" / "repro.py")
    here, wide = printed.split("recorded against float64:")
    found = {name: float(difference) for name, difference in re.findall(r"  (.+): largest difference (\S+) of", here)}
    assert values <= found.keys(), printed
    assert set(found.values()) == {0.0}, "the same machine gives the same bits"
    assert all(float(difference) < 1e-5 for _, difference in re.findall(r"  (.+): largest difference (\S+) of", wide))


def test_a_call_that_draws_random_numbers_draws_the_same(
    dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    assert run_here(capsys, "repro", dumps["convnet"], "Functional.dropout.0.forward", "-o", tmp_path).returncode == 0
    assert "output.0: largest difference 0 of" in run_script(tmp_path / "repro.py")


def test_a_call_that_is_not_there_is_said_with_what_was_meant(
    dumps: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    done = run_here(capsys, "repro", dumps["attention"], "Functional.linaer.0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and 'did you mean "Functional.linear.0.forward"?' in done.stderr
    assert not (tmp_path / "bug").exists()


def test_names_and_texts_of_a_hostile_dump_stay_texts(dumps: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "dump", *make_program("attention"))
    (file,) = dump.rglob("dump.json")
    text = file.read_text()
    file.write_text(text.replace('"Functional.layer_norm.0.forward": {', '"Functional.layer_norm(print).0.forward": {'))
    done = run_here(capsys, "repro", dump, "Functional.layer_norm(print).0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "cannot be made into a script" in done.stderr
    keyword = text.replace('"input_kwargs": {"weight"', '"input_kwargs": {"weight=print(1)"')
    assert keyword != text
    file.write_text(keyword)
    done = run_here(capsys, "repro", dump, "Functional.layer_norm.0.forward", "-o", tmp_path / "bug")
    assert done.returncode == 2 and "cannot be made into a script" in done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_the_kernels_of_the_run_are_used_again(enabled: bool, tmp_path: Path, capsys: Capture) -> None:
    with torch.backends.mkldnn.flags(enabled=enabled):
        dump = record(tmp_path / "dump", *make_program("convnet"))
    with torch.backends.mkldnn.flags(enabled=not enabled):
        assert run_here(capsys, "replay", dump, "--dtype", "recorded").returncode == 0
    call, _ = CALLS["convnet"]
    assert run_here(capsys, "repro", dump, call, "-o", tmp_path / "bug").returncode == 0
    here, _ = run_script(tmp_path / "bug" / "repro.py").split("recorded against float64:")
    assert set(re.findall(r"largest difference (\S+) of", here)) == {"0"}


def test_a_place_that_cannot_be_written_to_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = record(tmp_path / "dump", *make_program("router"))
    (tmp_path / "file").touch()
    for command in ("repro", "tensor"):
        done = run_here(capsys, command, dump, "Functional.linear.0.forward", "-o", tmp_path / "file")
        assert done.returncode == 2
        assert done.stderr == f"error: -o {tmp_path / 'file'} cannot be written to (Not a directory).\n"
    done = run_here(capsys, "truth", dump, "-o", tmp_path / "file")
    assert "is a file. Give a folder; truth.csv, truth.json are written into it." in done.stderr


def test_a_file_that_is_gone_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = record(tmp_path / "dump", *make_program("router"))
    next(dump.rglob("Functional.linear.0.forward.input.1.pt")).unlink()
    done = run_here(capsys, "repro", dump, "Functional.linear.0.forward", "-o", tmp_path / "bug")
    assert done.stderr == "error: the call cannot be made into a script: input.1: there is no file of it\n"
    done = run_here(capsys, "tensor", dump, "Functional.linear.0.forward.input.1", "-o", tmp_path / "tensors")
    assert "there is no file of Functional.linear.0.forward.input.1 in" in done.stderr
    assert 'only what task "replay" left out can be computed' in done.stderr
