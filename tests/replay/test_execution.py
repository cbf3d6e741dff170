"""`tensorprobe replay`: a step that is executed again, and the dump that comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tensorprobe.store.reader import open_dump
from tensorprobe.store.slot import TensorSlot
from tests.cli.command import run_here
from tests.replay.program import make_program, record

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("dump"), *make_program("attention"))


def test_in_the_recorded_precision_every_bit_comes_again_and_is_said(dump: Path, capsys: Capture) -> None:
    done = run_here(capsys, "replay", dump, "--dtype", "recorded")
    assert done.returncode == 0, done.stderr
    assert "values come out as recorded, bit for bit." in done.stdout


def test_a_value_that_comes_out_otherwise_is_named_and_is_exit_code_1(
    dump: Path, tmp_path: Path, capsys: Capture
) -> None:
    changed = record(tmp_path, *make_program("attention"))
    (file,) = changed.rglob("Functional.layer_norm.0.forward.output.0.pt")
    content = torch.load(file)
    content.view(-1)[0] += 1
    file.unlink()
    torch.save(content, file)
    done = run_here(capsys, "replay", changed, "--dtype", "recorded")
    assert done.returncode == 1
    assert "values come out otherwise than recorded" in done.stdout
    assert "Functional.layer_norm.0.forward output.0" in done.stdout


@pytest.mark.parametrize("name", ["attention", "convnet", "in_place"])
def test_the_dump_in_the_recorded_precision_compares_as_equal(name: str, tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "recorded", *make_program(name))
    assert run_here(capsys, "replay", dump, "--dtype", "recorded", "-o", tmp_path / "again").returncode == 0
    done = run_here(capsys, "compare", dump, tmp_path / "again")
    assert done.returncode == 0, done.stdout
    first, second = (list(next(open_dump(path).ranks()).records()) for path in (dump, tmp_path / "again"))
    assert [record.name for record in first] == [record.name for record in second]
    for one, other in zip(first, second, strict=True):
        for slot, again in zip(one.slots(), other.slots(), strict=True):
            if isinstance(slot, TensorSlot):  # a mean is a sum: its last digits depend on the order in memory
                again = replace(again, mean=slot.mean, norm=slot.norm)
            assert slot == again


def test_the_dump_in_float64_has_every_value_in_float64_and_is_read_by_show(
    dump: Path, tmp_path: Path, capsys: Capture
) -> None:
    done = run_here(capsys, "replay", dump, "-o", tmp_path / "truth")
    assert done.returncode == 0 and f"next: tensorprobe show {tmp_path / 'truth'}" in done.stdout
    (rank,) = open_dump(tmp_path / "truth").ranks()
    dtypes = {slot.dtype for one in rank.records() for slot in one.slots() if hasattr(slot, "dtype")}
    assert dtypes == {"torch.float64", "torch.int64", "torch.bool"}
    (loss,) = rank.folder.rglob("Functional.cross_entropy.0.forward.output.0.pt")
    assert torch.load(loss).dtype == torch.float64
    assert rank.run["complete"] and rank.run["replay"]["precision"] == "float64"
    assert run_here(capsys, "show", tmp_path / "truth").returncode == 0


def test_the_dump_that_comes_out_can_be_replayed_itself(tmp_path: Path, capsys: Capture) -> None:
    dump = record(tmp_path / "recorded", *make_program("router"))  # one that draws no random numbers in float64
    run_here(capsys, "replay", dump, "-o", tmp_path / "truth")
    done = run_here(capsys, "replay", tmp_path / "truth", "--dtype", "recorded")
    assert "bit for bit" in done.stdout, done.stdout


def test_until_ends_after_that_record(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    done = run_here(capsys, "replay", dump, "--until", "Functional.layer_norm.0.forward", "-o", tmp_path / "part")
    assert done.returncode == 0, done.stderr
    names = [record.name for record in next(open_dump(tmp_path / "part").ranks()).records()]
    assert names[-1] == "Functional.layer_norm.0.forward"


def test_a_record_that_is_not_there_is_said_with_what_was_meant(dump: Path, capsys: Capture) -> None:
    done = run_here(capsys, "replay", dump, "--until", "Functional.layer_norm.0.forwrd")
    assert done.returncode == 2
    assert 'did you mean "Functional.layer_norm.0.forward"?' in done.stderr


def test_a_folder_that_holds_something_is_not_written_to(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    done = run_here(capsys, "replay", dump, "-o", tmp_path)
    assert done.returncode == 2 and "not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_dumps_that_cannot_be_replayed_say_what_to_record(tmp_path: Path, capsys: Capture) -> None:
    folder = record(tmp_path, *make_program("attention"))
    (file,) = folder.rglob("dump.json")
    header, _, rest = file.read_text().partition(', "data"')
    for change, advice in (({"level": "L0"}, "L1 or mix"), ({"task": "statistics"}, 'task "replay" or "tensor"')):
        changed = json.dumps({**json.loads(header + "}"), **change})
        file.write_text(changed[:-1] + ', "data"' + rest)
        done = run_here(capsys, "replay", folder)
        assert done.returncode == 2 and advice in done.stderr
