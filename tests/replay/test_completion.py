"""Task `replay`: files of what cannot be computed again, and everything else when it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe.errors import ConfigError
from tensorprobe.store.reader import open_dump
from tests.cli.command import run_here
from tests.replay.program import PROGRAMS, make_program

Capture = pytest.CaptureFixture[str]


def record(folder: Path, name: str, task: str, level: str = "mix") -> Path:
    model, step = make_program(name)
    with tensorprobe.capture(model, folder / task, level=level, task=task):
        step().backward()
    return folder / task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps")
    for task in ("tensor", "replay", "statistics"):
        record(path, "attention", task)
    return path


def files(dump: Path) -> dict[int, int]:
    return {path.stat().st_ino: path.stat().st_size for path in dump.rglob("*.pt")}


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.some(2)
def test_all_that_was_left_out_can_be_computed_and_is_what_task_tensor_records(
    name: str, level: str, tmp_path: Path, capsys: Capture
) -> None:
    whole, few = (record(tmp_path, name, task, level) for task in ("tensor", "replay"))
    assert len(files(few)) < len(files(whole)) / 2
    done = run_here(capsys, "replay", few, "--dtype", "recorded", "-o", tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {path.name: torch.load(path) for path in whole.rglob("*.pt")}
    found = {path.name: torch.load(path) for path in (tmp_path / "again").rglob("*.pt")}
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name].nan_to_num(), expected[name].nan_to_num())] == []


def test_it_has_the_statistics_of_everything(folder: Path) -> None:
    reports = [next(open_dump(folder / task).ranks()) for task in ("replay", "statistics")]
    first, second = ([record.name for record in rank.records()] for rank in reports)
    assert first == second
    for name in first:
        slots = [
            [(slot.slot, slot.max, slot.norm) for slot in rank.record(name).slots() if hasattr(slot, "norm")]
            for rank in reports
        ]
        assert slots[0] == slots[1]


def test_compare_reads_it(folder: Path, capsys: Capture) -> None:
    done = run_here(capsys, "compare", folder / "tensor", folder / "replay")
    assert done.returncode == 0 and "142 element by element" in done.stdout, done.stdout


def test_truth_reads_it(folder: Path, capsys: Capture) -> None:
    texts = [run_here(capsys, "truth", folder / task).stdout for task in ("tensor", "replay")]
    assert texts[0] == texts[1] and "nothing is wrong" in texts[0]


def test_show_reads_it(folder: Path, capsys: Capture) -> None:
    assert run_here(capsys, "show", folder / "replay").returncode == 0


@pytest.mark.parametrize("task", ["tensor", "replay"])
@pytest.mark.parametrize("name", ["Functional.linear.0.forward", "Functional.linear.0.forward.output.0"])
def test_single_tensors_are_written_as_files(
    task: str, name: str, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    done = run_here(capsys, "tensor", folder / task, name, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    expected = [path for path in (folder / "tensor").rglob("*.pt") if path.name.startswith(name)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in expected)
    for path in expected:
        assert torch.equal(torch.load(path), torch.load(tmp_path / "out" / path.name))


def test_a_gradient_is_one_of_them(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    name = "Functional.layer_norm.0.backward.output.0"
    assert run_here(capsys, "tensor", folder / "replay", name, "-o", tmp_path).returncode == 0
    (expected,) = (folder / "tensor").rglob(f"{name}.pt")
    assert torch.equal(torch.load(expected), torch.load(tmp_path / f"{name}.pt"))


def test_a_tensor_that_is_not_there_is_said_with_what_was_meant(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    done = run_here(capsys, "tensor", folder / "replay", "Functional.linaer.0.forward", "-o", tmp_path)
    assert done.returncode == 2 and 'did you mean "Functional.linear.0.forward"?' in done.stderr
    done = run_here(capsys, "tensor", folder / "statistics", "Functional.linear.0.forward", "-o", tmp_path)
    assert done.returncode == 2 and 'Record with task "replay" or "tensor".' in done.stderr


def test_where_the_bits_do_not_come_again_that_is_said(tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path, "attention", "replay")
    for path in (*dump.rglob("*LayerNorm*.weight.pt"), *dump.rglob("*layer_norm*.weight.pt")):
        content = torch.load(path)
        path.unlink()
        torch.save(content + 1, path)
    done = run_here(capsys, "tensor", dump, "Functional.linear.0.forward", "-o", tmp_path / "out")
    assert done.returncode == 2 and "does not come out as recorded" in done.stderr


@pytest.mark.parametrize("level", ["L0", "debug"])
def test_levels_without_calls_are_refused_at_once(level: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='write "level": "L1" or "mix"'):
        tensorprobe.capture(None, tmp_path, level=level, task="replay")
