"""Closing the files of a killed run."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import open_dump
from tensorprobe.store.recover import recover_dump
from tests.report.dump_files import (
    HEADER,
    RUN,
    forward,
    model_records,
    tensor,
    write_killed_rank,
    write_lines,
    write_rank,
)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_killed_run_becomes_complete(tmp_path: Path) -> None:
    folder = write_killed_rank(tmp_path / "step0" / "rank0", model_records())
    (folder / "run.json").write_text(json.dumps({**RUN, "complete": False}))
    (done,) = recover_dump(tmp_path)
    assert done.folder == folder
    assert done.actions == (
        "run.json: marked as recovered",
        "construct.json: 10 entries, 1 cut line left out",
        "stack.json: written from its journal",
        "dump.json: 10 entries, 1 cut line left out",
    )
    assert sorted(path.name for path in folder.iterdir()) == ["construct.json", "dump.json", "run.json", "stack.json"]
    assert json.loads((folder / "run.json").read_text()) == {**RUN, "complete": False, "recovered": True}
    stacks = json.loads((folder / "stack.json").read_text())
    assert stacks == {"0": [list(model_records()), ["File /x/model.py, line 18, in forward, \n x = self.fc(x)"]]}


def test_what_was_recovered_is_what_was_written(tmp_path: Path) -> None:
    whole = write_rank(tmp_path / "whole", model_records(), run=None)
    killed = write_killed_rank(tmp_path / "killed", model_records())
    recover_dump(killed)
    assert (killed / "dump.json").read_bytes() == (whole / "dump.json").read_bytes()
    rank = next(open_dump(killed).ranks())
    assert (rank.problems, rank.record_count) == ((), 10)


def test_the_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    assert recover_dump(tmp_path)
    before = snapshot(tmp_path)
    assert recover_dump(tmp_path) == []
    assert snapshot(tmp_path) == before


def test_a_complete_dump_is_not_touched(tmp_path: Path) -> None:
    folder = write_rank(tmp_path / "step0" / "rank", model_records())
    (folder / "dump_tensor_data").mkdir()
    (folder / "dump_tensor_data" / ".a.pt.tmp").touch()
    before = snapshot(tmp_path)
    assert recover_dump(tmp_path) == []
    assert snapshot(tmp_path) == before


def test_only_the_ranks_that_were_cut_are_touched(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank0", model_records())
    before = snapshot(tmp_path / "step0" / "rank0")
    write_killed_rank(tmp_path / "step0" / "rank1", model_records())
    assert [done.folder.name for done in recover_dump(tmp_path)] == ["rank1"]
    assert snapshot(tmp_path / "step0" / "rank0") == before


def touch(folder: Path, *names: str) -> Path:
    tensors = folder / "dump_tensor_data"
    tensors.mkdir()
    for name in names:
        (tensors / name).touch()
    return tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_files(*names: str) -> dict[str, Any]:
    """A record for each file."""
    return {f"Torch.sin.{n}.forward": forward(output=tensor(data_name=name)) for n, name in enumerate(names)}


def test_unfinished_tensor_files_are_removed(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, with_files("a.pt"))
    folder = touch(tmp_path, ".a.pt.tmp", ".b.pt.tmp", "a.pt", "c.tmp")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "dump_tensor_data: 2 unfinished files removed"
    assert names(folder) == ["a.pt", "c.tmp"]


def test_tensor_files_of_records_that_were_lost_are_removed_and_what_is_no_tensor_stays(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, with_files("a.pt"))
    write_lines(tmp_path / "debug.json.part", HEADER, {"x.0.debug": {"key": [tensor(data_name="x.npy")]}}, "")
    folder = touch(tmp_path, "a.pt", "x.npy", "lost.pt", "lost.npy", "notes.txt")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "dump_tensor_data: 2 files of records that were lost removed"
    assert names(folder) == ["a.pt", "notes.txt", "x.npy"]


def test_tensor_files_that_a_spoilt_line_may_name_stay(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, with_files("a.pt", "b.pt"))
    part = tmp_path / "dump.json.part"
    part.write_text(part.read_text().replace('"Torch.sin.0.forward": {', '"Torch.sin.0.forward": {{', 1))
    folder = touch(tmp_path, "a.pt", "b.pt")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "dump_tensor_data: 1 file of no readable record left"
    assert names(folder) == ["a.pt", "b.pt"]


def test_tensor_files_whose_records_a_full_disk_refused_stay(tmp_path: Path) -> None:
    """A record that could not be written is what is missing: its tensors are all that is left of the call."""
    run = {**RUN, "complete": False, "coverage": {"seen": 2, "recorded": 1, "failed": 1}}
    write_killed_rank(tmp_path, with_files("a.pt"))
    (tmp_path / "run.json").write_text(json.dumps(run))
    folder = touch(tmp_path, "a.pt", "of the record that was refused.pt")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "dump_tensor_data: 1 file of no readable record left"
    assert names(folder) == ["a.pt", "of the record that was refused.pt"]


@pytest.mark.parametrize("target", ["inside", "outside"])
def test_tensor_files_behind_a_link_stay(target: str, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    other = write_rank(dump / "step1" / "rank", with_files("a.pt"))
    touch(other, "a.pt", "b.pt", ".c.pt.tmp")
    outside = touch(tmp_path, "a.pt", "b.pt", ".c.pt.tmp")
    killed = write_killed_rank(dump / "step0" / "rank", with_files())
    (killed / "dump_tensor_data").symlink_to(outside if target == "outside" else other / "dump_tensor_data")
    recover_dump(dump)
    assert (killed / "dump.json").exists()
    for folder in (outside, other / "dump_tensor_data"):
        assert names(folder) == [".c.pt.tmp", "a.pt", "b.pt"]


def test_a_lock_that_is_no_file_of_ours_stays_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_killed_rank(tmp_path / "dump" / "step0" / "rank", model_records())
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "dump" / ".rank.lock").symlink_to(tmp_path / "mine")
    (tmp_path / "dump" / ".rank1.lock").mkdir()
    (tmp_path / "dump" / ".rank2.lock").write_text("1")
    (tmp_path / "dump" / ".ranking.lock").write_text("of somebody")
    done = recover_dump(tmp_path / "dump")
    assert [recovery.actions for recovery in done][-1] == (".rank2.lock: removed",)
    assert names(tmp_path / "dump") == [".rank.lock", ".rank1.lock", ".ranking.lock", "step0"]
    assert (tmp_path / "mine").read_text() == "precious"
    assert [message.rpartition("/")[2] for message in caplog.messages] == [
        ".rank.lock is not a lock file that a run has left: it stays",
        ".rank1.lock is not a lock file that a run has left: it stays",
    ]


def test_tensor_files_that_are_missing_are_said(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, with_files("a.pt", "b.pt", "c.pt"))
    touch(tmp_path, "a.pt")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "dump_tensor_data: 2 files that records name are missing, the first is b.pt"


def test_a_run_that_was_killed_between_two_windows_is_recovered_too(tmp_path: Path) -> None:
    write_rank(tmp_path, with_files("a.pt"), run={**RUN, "complete": False})
    folder = touch(tmp_path, "a.pt", "lost.pt", ".b.pt.tmp")
    (done,) = recover_dump(tmp_path)
    assert done.actions == (
        "dump_tensor_data: 1 unfinished file removed",
        "dump_tensor_data: 1 file of records that were lost removed",
        "run.json: marked as recovered",
    )
    assert names(folder) == ["a.pt"] and recover_dump(tmp_path) == []


def test_tensor_files_of_backward_passes_which_run_json_names_stay(tmp_path: Path) -> None:
    passes = [{"leaves": [{"before": tensor(data_name="backward_pass.0.leaf.0.before.pt")}]}]
    write_rank(tmp_path, with_files("a.pt"), run={**RUN, "complete": False, "backward_passes": passes})
    folder = touch(tmp_path, "a.pt", "backward_pass.0.leaf.0.before.pt", "lost.pt")
    (done,) = recover_dump(tmp_path)
    assert "dump_tensor_data: 1 file of records that were lost removed" in done.actions
    assert names(folder) == ["a.pt", "backward_pass.0.leaf.0.before.pt"]


def test_what_a_kill_left_of_a_step_that_had_just_begun_is_removed(tmp_path: Path) -> None:
    complete = write_rank(tmp_path / "step0" / "rank", model_records())
    begun = tmp_path / "step1" / "rank"
    begun.mkdir(parents=True)
    (begun / ".run.json.tmp").write_text("{")
    assert recover_dump(tmp_path) == [] and names(begun)  # its run may be alive
    (tmp_path / ".rank.lock").write_text("1")
    before = snapshot(complete)
    assert [done.actions for done in recover_dump(tmp_path)] == [
        (".rank.lock: removed",),
        ("rank: 1 unfinished file removed",),
    ]
    assert not names(begun) and snapshot(complete) == before and recover_dump(tmp_path) == []


def test_a_run_that_ended_by_an_exception_needs_no_recovery(tmp_path: Path) -> None:
    write_rank(tmp_path, with_files("a.pt"), run={**RUN, "complete": False, "ended": "ValueError: no"})
    touch(tmp_path, "a.pt")
    assert recover_dump(tmp_path) == []


def test_saved_values_are_recovered(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "debug.json.part", HEADER, {"x.0.debug": tensor(), "y.0.debug": None}, "")
    with path.open("a") as file:
        file.write(',\n"z.0.debug": {"type"')
    (done,) = recover_dump(tmp_path)
    assert done.actions == ("run.json: marked as recovered", "debug.json: 2 entries, 1 cut line left out")
    assert list(json.loads((tmp_path / "debug.json").read_text())["data"]) == ["x.0.debug", "y.0.debug"]


@pytest.mark.parametrize("cut", range(0, len(HEADER) + 1, 7))
def test_a_cut_header_gives_an_empty_dump(tmp_path: Path, cut: int) -> None:
    (tmp_path / "dump.json.part").write_text(HEADER[:cut])
    recover_dump(tmp_path)
    content = json.loads((tmp_path / "dump.json").read_text())
    assert content["data"] == {}
    assert set(content) == {"task", "level", "framework", "dump_data_dir", "data"}


def test_an_interrupted_recovery_is_taken_up_again(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    write_lines(tmp_path / "dump.json", HEADER, model_records(), "}}")
    (tmp_path / ".dump.json.x1.tmp").touch()
    (done,) = recover_dump(tmp_path)
    assert "dump.json: 10 entries, 1 cut line left out" in done.actions
    assert not list(tmp_path.glob("*.part"))
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_part_that_holds_less_than_the_complete_file_is_not_taken(tmp_path: Path) -> None:
    write_rank(tmp_path, model_records())
    write_lines(tmp_path / "dump.json.part", HEADER, {"Torch.add.0.forward": forward()}, "")
    before = snapshot(tmp_path)
    with pytest.raises(DumpError, match=r"lacks some of its entries\. Move the one"):
        recover_dump(tmp_path)
    assert snapshot(tmp_path) == before


def test_the_journal_that_waits_beside_a_complete_stack_file_is_folded_in(tmp_path: Path) -> None:
    write_rank(tmp_path, {"a.0.forward": forward()}, stacks={"0": [["a.0.forward"], ["old"]]})
    (tmp_path / "stack.json.part").write_text('["stack", 5, ["new"]]\n["call", 5, "b.0.forward"]\n')
    recover_dump(tmp_path)
    content = json.loads((tmp_path / "stack.json").read_text())
    assert content == {"0": [["a.0.forward"], ["old"]], "1": [["b.0.forward"], ["new"]]}


def test_a_dump_of_a_live_process_is_left_alone(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "run.json").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    before = snapshot(tmp_path)
    with pytest.raises(DumpError, match=rf"is being written by process {os.getpid()}.*--force"):
        recover_dump(tmp_path)
    assert snapshot(tmp_path) == before
    assert recover_dump(tmp_path, force=True)


@pytest.mark.parametrize(
    "run",
    [
        {"pid": 2**22 + 1},
        {"pid": -1},
        {"pid": 0},
        {"pid": True},
        {"pid": "1"},
        {"pid": 10**30},
        {"pid": 1, "host": "?"},
    ],
)
def test_a_dump_of_a_process_that_ended_or_ran_elsewhere_is_recovered(tmp_path: Path, run: dict[str, object]) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "run.json").write_text(json.dumps({"host": socket.gethostname(), **run}))
    assert recover_dump(tmp_path)


def test_a_spoilt_run_file_is_left_as_it_is(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "run.json").write_text("{")
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "run.json: cannot be read, left as it is"
    assert (tmp_path / "run.json").read_text() == "{"


def test_the_permissions_stay(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "dump.json.part").chmod(0o640)
    recover_dump(tmp_path)
    assert stat.S_IMODE((tmp_path / "dump.json").stat().st_mode) == 0o640


def test_one_file_stands_for_its_folder(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    assert recover_dump(tmp_path / "dump.json.part")
    assert not (tmp_path / "construct.json.part").exists()


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_killed_rank(tmp_path, model_records())
    before = snapshot(tmp_path)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DumpError, match=r"No space left on device\)\. Nothing in it is lost"):
        recover_dump(tmp_path)
    assert snapshot(tmp_path) == before
