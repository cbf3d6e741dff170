"""`tensorprobe show`, as a user types it: once in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import run_command, run_here
from tests.report.dump_files import forward, model_parents, model_records, write_killed_rank, write_rank

Capture = pytest.CaptureFixture[str]


def test_a_dump_is_shown(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank", model_records(), model_parents())
    done = run_command("show", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NaN         Torch.log.0.forward  output.0  NaN 2 of 6  arises here" in done.stdout
    assert "└─ block: Block" in done.stdout


def test_one_step_and_one_rank(tmp_path: Path, capsys: Capture) -> None:
    for step in range(2):
        for rank in range(2):
            write_rank(tmp_path / f"step{step}" / f"rank{rank}", {"Torch.add.0.forward": forward()})
    done = run_here(capsys, "show", tmp_path, "--step", 1, "--rank", 0)
    assert "step1/rank0" in done.stdout
    assert done.stdout.count("rank") == 1
    missing = run_here(capsys, "show", tmp_path, "--step", 7)
    assert missing.returncode == 2
    assert missing.stderr == (
        f"error: {tmp_path} has no step 7. It has: step0/rank0, step0/rank1, step1/rank0, step1/rank1.\n"
    )


def test_json_can_be_read_by_a_program(tmp_path: Path, capsys: Capture) -> None:
    write_rank(tmp_path, model_records(), model_parents())
    done = run_here(capsys, "show", "--json", tmp_path)
    assert json.loads(done.stdout)["ranks"][0]["record_count"] == 10


def test_depth_and_filter(tmp_path: Path, capsys: Capture) -> None:
    write_rank(tmp_path, model_records(), model_parents())
    assert "Functional.linear" not in run_here(capsys, "show", tmp_path, "--depth", 1).stdout
    assert "Module.block.Block.forward.0" in run_here(capsys, "show", tmp_path, "--filter", "torch.log").stdout
    assert run_here(capsys, "show", tmp_path, "--depth", 0).returncode == 2


def test_a_killed_run_is_shown(tmp_path: Path, capsys: Capture) -> None:
    write_killed_rank(tmp_path, model_records())
    done = run_here(capsys, "show", tmp_path)
    assert done.returncode == 0
    assert "incomplete" in done.stdout


def test_a_rank_that_cannot_be_read_is_an_error_after_the_others(tmp_path: Path, capsys: Capture) -> None:
    for rank in range(3):
        write_rank(tmp_path / "step0" / f"rank{rank}", {"Torch.add.0.forward": forward()})
    (tmp_path / "step0" / "rank1" / "dump.json").write_text("{")
    done = run_here(capsys, "show", tmp_path)
    assert done.returncode == 2
    assert "step0/rank2" in done.stdout
    assert done.stderr.startswith(f"error: {tmp_path}/step0/rank1/dump.json is not whole")
    as_json = run_here(capsys, "show", "--json", tmp_path)
    assert as_json.returncode == 2
    assert [rank["error"] is None for rank in json.loads(as_json.stdout)["ranks"]] == [True, False, True]


def test_a_single_dump_that_cannot_be_read_prints_only_the_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "dump.json").write_text("{")
    done = run_here(capsys, "show", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
