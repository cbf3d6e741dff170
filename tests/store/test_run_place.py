"""A dump_path that is used again: the new run replaces the earlier one, and neither is ever mixed with the other."""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.store import earlier_run, file_lock, run_place
from tensorprobe.store.folder import Folder
from tensorprobe.store.rank_lock import RankLock
from tensorprobe.store.reader import open_dump
from tensorprobe.store.recover import recover_dump
from tensorprobe.store.run_place import RunPlace, describe_process
from tensorprobe.store.running import own_beginning_seconds
from tensorprobe.store.writer import RankWriter

OLD = "20250101-101010-aaaaaa"
OLDER = "20240101-101010-bbbbbb"
ENDED = {"host": socket.gethostname(), "pid": 2**22 + 1, "process_began": "1"}
HEADER = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}


@pytest.fixture(autouse=True)
def first_run_of_its_process() -> Iterator[None]:
    """No test goes on with the run of another."""
    yield
    run_place._process_runs.clear()


def tree(folder: Path) -> list[str]:
    """All files, and the folders that are empty."""
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink() or not any(path.iterdir())]
    return sorted(str(path.relative_to(folder)) for path in paths if path.suffix != ".lock")


def write_old(dump_path: Path, *places: str, run_id: str | None = OLD, **run: Any) -> Path:
    """A folder of a run that has ended, unless `run` says otherwise."""
    folder = dump_path.joinpath(*places)
    (folder / "dump_tensor_data").mkdir(parents=True)
    (folder / "dump_tensor_data" / "a.pt").write_text("old")
    (folder / "dump.json").write_text(json.dumps(HEADER)[:-1] + ', "data": {\n"Torch.sin.0.forward": {}\n}}\n')
    started = "2025-01-01T10:10:10.000+00:00"
    identity = {} if run_id is None else {"run_id": run_id}
    (folder / "run.json").write_text(json.dumps({**identity, **ENDED, "started": started, "complete": True, **run}))
    return folder


def record(place: RunPlace, *places: str, is_complete: bool = True) -> None:
    """One step, as a session records it."""
    folder = place.open(*places)
    writer = RankWriter(folder, HEADER, has_construct=False, has_extra=False)
    run = {"run_id": place.run_id, **describe_process()}
    writer.open({**run, "complete": False})
    writer.append_records([("Torch.cos.0.forward", {})])
    writer.close({**run, "complete": is_complete}, is_finished=True)
    place.end_step(is_complete=is_complete)


def run_ids(dump_path: Path) -> dict[str, str | None]:
    return {rank.name: rank.run.get("run_id") for rank in open_dump(dump_path).ranks()}


def next_process() -> None:
    """What follows is another process."""
    run_place._process_runs.clear()


def test_five_steps_and_then_two_leave_two(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        write_old(tmp_path, f"step{number}", "rank")
    place = RunPlace(tmp_path, None)
    with caplog.at_level(logging.INFO, "tensorprobe"):
        record(place, "step0", "rank", is_complete=False)
    assert list(run_ids(tmp_path)) == ["step0/rank"], "the old ones are no part of what is shown"
    assert len(open_dump(tmp_path / f"replaced_{OLD}").steps) == 5, "and not lost as long as no step is complete"
    assert caplog.messages == [
        f"{tmp_path} held an earlier run (step0/rank … step4/rank, 5 folders), which is now in "
        f"{tmp_path}/replaced_{OLD}; it is removed when a step of this run is complete. To keep it, rename that folder"
    ]
    record(place, "step1", "rank")
    place.release()
    assert set(run_ids(tmp_path).values()) == {place.run_id} and list(run_ids(tmp_path)) == ["step0/rank", "step1/rank"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("replaced")] == []


def test_at_every_renaming_the_dump_path_holds_steps_of_one_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_old(tmp_path, f"step{number}", "rank")
    move, seen = Folder.move, []

    def look_and_move(folder: Folder, name: str, target: Folder) -> None:
        move(folder, name, target)
        seen.append({one.run_id for one in earlier_run.find_folders(Folder(tmp_path))})

    monkeypatch.setattr(Folder, "move", look_and_move)
    place = RunPlace(tmp_path, None)
    record(place, "step0", "rank")
    place.release()
    assert seen == [{OLD}, {OLD}, set()]


def test_a_kill_while_it_is_moved_aside_is_said_and_recover_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_old(tmp_path, f"step{number}", "rank")
    before = tree(tmp_path)
    move, count = earlier_run.move_aside, [0]

    def move_two(root: Folder, found: earlier_run.RunFolder) -> earlier_run.Moved:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt  # here it was killed
        return move(root, found)

    with monkeypatch.context() as patched:
        patched.setattr(earlier_run, "move_aside", move_two)
        place = RunPlace(tmp_path, None)
        with pytest.raises(KeyboardInterrupt):
            place.open("step0", "rank")
    place.release()
    with pytest.raises(DumpError, match=rf"the rest is in replaced_{OLD}.*with: tensorprobe recover {tmp_path}"):
        open_dump(tmp_path).select()
    assert recover_dump(tmp_path)[0].actions == (f"replaced_{OLD}: put back, nothing has replaced it",)
    assert tree(tmp_path) == before and len(open_dump(tmp_path).select().steps) == 3


def test_a_kill_before_the_first_file_leaves_a_hint_and_recover_puts_it_back(tmp_path: Path) -> None:
    old = write_old(tmp_path, "step0", "rank")
    (moved,) = [
        earlier_run.move_aside(Folder(tmp_path), one) for one in earlier_run.find_folders(Folder(tmp_path))
    ]  # and here it was killed
    assert not old.exists() and moved.target == f"replaced_{OLD}"
    with pytest.raises(DumpError, match=rf"An earlier run is in replaced_{OLD}, .*: tensorprobe recover {tmp_path}"):
        open_dump(tmp_path)
    recover_dump(tmp_path)
    assert list(run_ids(tmp_path)) == ["step0/rank"] and not (tmp_path / f"replaced_{OLD}").exists()


def test_recover_does_not_put_back_what_a_run_has_replaced(tmp_path: Path) -> None:
    write_old(tmp_path, f"replaced_{OLD}", "step0", "rank")
    write_old(tmp_path, "step0", "rank", run_id=OLDER)
    before = tree(tmp_path)
    assert recover_dump(tmp_path) == [] and tree(tmp_path) == before


def test_of_runs_that_crash_in_their_first_step_the_last_is_kept(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank")
    kept = []
    for _ in range(3):
        next_process()
        place = RunPlace(tmp_path, None)
        record(place, "step0", "rank", is_complete=False)
        place.release()
        kept.append([path.name for path in tmp_path.iterdir() if path.name.startswith("replaced")])
        (tmp_path / "step0" / "rank" / "run.json").write_text(json.dumps({"run_id": place.run_id, **ENDED}))
    assert kept[0] == [f"replaced_{OLD}"] and [len(names) for names in kept] == [1, 1, 1]
    assert f"replaced_{OLD}" not in kept[1]


def test_a_run_that_crashed_before_its_first_record_has_replaced_nothing(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank")
    for _ in range(2):
        next_process()
        place = RunPlace(tmp_path, None)
        place.open("step0", "rank")
        place.release()
    assert (tmp_path / f"replaced_{OLD}" / "step0" / "rank" / "dump.json").exists()


def test_a_folder_that_the_user_renamed_is_kept(tmp_path: Path) -> None:
    write_old(tmp_path, "my old run", "step0", "rank")
    write_old(tmp_path, "replaced_mine", "step0", "rank")
    before = tree(tmp_path)
    place = RunPlace(tmp_path, None)
    record(place, "step0", "rank")
    place.release()
    assert set(before) < set(tree(tmp_path))


def test_a_window_in_which_nothing_happened_gives_the_earlier_run_its_place_again(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank")
    (tmp_path / "step0" / "rank" / "notes.txt").touch()
    before = tree(tmp_path)
    place = RunPlace(tmp_path, None)
    writer = RankWriter(place.open("step0", "rank"), HEADER, has_construct=False, has_extra=False)
    writer.open({})
    writer.discard()
    place.leave()
    place.release()
    assert tree(tmp_path) == before


def test_a_window_in_which_nothing_happened_after_a_recorded_step_gives_nothing_back(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank")
    place = RunPlace(tmp_path, None)
    record(place, "step0", "rank", is_complete=False)
    place.leave()
    place.release()
    assert set(run_ids(tmp_path).values()) == {place.run_id}


def test_only_what_belongs_to_a_dump_is_moved_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_old(tmp_path, "step0", "rank")
    outside = tmp_path.parent / f"{tmp_path.name} outside"
    outside.mkdir()
    (outside / "a.pt").write_text("precious")
    (folder / "notes.txt").write_text("mine")
    (folder / "dump_tensor_data" / "notes.txt").write_text("mine")
    (folder / "dump_tensor_data" / "link.pt").symlink_to(outside / "a.pt")
    (tmp_path / "rank3").mkdir()
    (tmp_path / "rank3" / "0_x.npy").write_text("of tensorprobe.save")
    (tmp_path / "step7" / "rank0").mkdir(parents=True)
    (tmp_path / "step7" / "rank0" / "x_float32_0.npy").write_text("of save")
    place = RunPlace(tmp_path, None)
    with caplog.at_level(logging.WARNING, "tensorprobe"):
        record(place, "step0", "rank")
    place.release()
    assert tree(tmp_path) == [
        "rank3/0_x.npy",
        f"replaced_{OLD}/step0/rank/dump_tensor_data/link.pt",
        f"replaced_{OLD}/step0/rank/dump_tensor_data/notes.txt",
        "step0/rank/dump.json",
        "step0/rank/notes.txt",
        "step0/rank/run.json",
        "step7/rank0/x_float32_0.npy",
    ]
    assert "is not removed as a whole: there are files in it that belong to no dump" in caplog.text
    assert (outside / "a.pt").read_text() == "precious"


@pytest.mark.parametrize("places", [("step0",), ("step0", "rank"), ("step0", "rank", "dump_tensor_data")])
def test_no_link_is_followed_when_a_run_is_replaced(tmp_path: Path, places: tuple[str, ...]) -> None:
    outside, dump = tmp_path / "outside", tmp_path / "dump"
    write_old(outside, "rank")
    before = tree(outside)
    write_old(dump, "step1", "rank")
    dump.joinpath(*places[:-1]).mkdir(parents=True, exist_ok=True)
    dump.joinpath(*places).symlink_to(outside / "rank" if places[-1] != "step0" else outside)
    place = RunPlace(dump, None)
    record(place, "step5", "rank")
    place.release()
    assert tree(outside) == before and (dump / "step5" / "rank" / "dump.json").exists()
    assert not (dump / "step1").exists()


def test_the_steps_of_one_process_after_another_run_of_it_are_a_run_of_their_own(tmp_path: Path) -> None:
    first, second = RunPlace(tmp_path, None), RunPlace(tmp_path, None)
    for number in range(3):
        record(first, f"step{number}", "rank")
    first.release()
    record(second, "step0", "rank")
    second.release()
    assert second.run_id == f"{first.run_id}.2" and list(run_ids(tmp_path)) == ["step0/rank"]


def test_steps_that_are_filtered_leave_the_earlier_run_alone_until_one_is_recorded(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank")
    place = RunPlace(tmp_path, None)  # of step 2 alone: nothing was opened so far
    assert (tmp_path / "step0" / "rank" / "dump.json").exists()
    record(place, "step2", "rank")
    place.release()
    assert list(run_ids(tmp_path)) == ["step2/rank"]


# -- several ranks -----------------------------------------------------------------------------------------------------


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


def test_ranks_of_one_program_share_the_id_of_the_first_whether_it_still_records_or_not(tmp_path: Path) -> None:
    first = write_old(tmp_path, "step0", "rank0", started=now())
    assert datetime.datetime.now().timestamp() >= own_beginning_seconds()
    place = RunPlace(tmp_path, 1)
    record(place, "step0", "rank1")
    place.release()
    assert place.run_id == OLD and first.exists()
    assert len(list(open_dump(tmp_path).select().ranks())) == 2


def test_a_rank_of_a_new_program_does_not_join_one_that_had_ended_when_it_was_started(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank0")  # with `rank: [0]`, or crashed before rank 1 came
    place = RunPlace(tmp_path, 1)
    record(place, "step0", "rank1")
    assert place.run_id != OLD
    next_process()
    other = RunPlace(tmp_path, 0)
    record(other, "step0", "rank0")
    place.release()
    other.release()
    assert run_ids(tmp_path) == dict.fromkeys(["step0/rank0", "step0/rank1"], place.run_id)


def test_a_program_with_fewer_ranks_replaces_all_of_the_earlier_one(tmp_path: Path) -> None:
    for step in range(3):
        for rank in range(4):
            write_old(tmp_path, f"step{step}", f"rank{rank}")
    place = RunPlace(tmp_path, 1)
    record(place, "step0", "rank1")
    place.release()
    assert run_ids(tmp_path) == {"step0/rank1": place.run_id}


def test_ranks_that_may_belong_to_the_same_program_are_never_moved(tmp_path: Path) -> None:
    """One rank after the other, by hand: nothing tells them from two programs, and nothing is lost."""
    write_old(tmp_path, "step0", "rank0")
    place = RunPlace(tmp_path, 1)
    record(place, "step0", "rank1")
    place.release()
    assert list(run_ids(tmp_path)) == ["step0/rank0", "step0/rank1"]
    with pytest.raises(DumpError, match="holds folders of 2 runs, which cannot be read as one"):
        open_dump(tmp_path).select()


def test_what_a_living_process_writes_is_not_moved(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank0")
    write_old(tmp_path, "step0", "rank1", **describe_process())
    alive = RankLock(tmp_path, 1)
    place = RunPlace(tmp_path, 0)
    record(place, "step0", "rank0")
    place.release()
    alive.release()
    assert run_ids(tmp_path) == {"step0/rank0": place.run_id, "step0/rank1": OLD}


def test_one_outside_distributed_programs_replaces_what_ranks_have_left(tmp_path: Path) -> None:
    write_old(tmp_path, "step0", "rank0")
    write_old(tmp_path, "step0", "rank1")
    write_old(tmp_path, "step0", "proc123")
    place = RunPlace(tmp_path, None)
    record(place, "step0", "rank")
    place.release()
    assert run_ids(tmp_path) == {"step0/rank": place.run_id}


def test_a_second_process_at_the_same_time_belongs_to_the_run_of_the_first(tmp_path: Path) -> None:
    first = RunPlace(tmp_path, None)
    first.open("step0", "rank")
    next_process()
    second = RunPlace(tmp_path, None)
    second._lock._is_second = True  # as it is in another process
    record(second, "step0", f"proc{os.getpid()}")
    assert second.run_id == first.run_id
    record(first, "step0", "rank")
    first.release()
    assert set(run_ids(tmp_path).values()) == {first.run_id}


def test_an_api_dump_that_a_living_process_writes_is_not_moved(tmp_path: Path) -> None:
    first = RunPlace(tmp_path, None)
    first.open("rank0")  # what api_dump calls it
    next_process()
    second = RunPlace(tmp_path, None)
    second._lock._is_second = True  # as it is in another process
    second.open(f"proc{os.getpid()}")
    assert second.run_id == first.run_id and (tmp_path / "rank0" / "run.json").exists()
    first.release()


@pytest.mark.parametrize("is_alive", [True, False])
def test_where_there_are_no_locks_a_living_process_is_what_counts(
    is_alive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "fcntl", None)
    process = describe_process()
    write_old(tmp_path, "step0", "rank0", **(process if is_alive else {**process, "process_began": "1"}))
    place = RunPlace(tmp_path, None)
    place.open("step0", "rank")
    place.release()
    assert (place.run_id == OLD) is (tmp_path / "step0" / "rank0").exists() is is_alive


def test_a_rank_that_is_known_late_does_not_part_a_run(tmp_path: Path) -> None:
    before = RunPlace(tmp_path, None)
    record(before, "step0", "rank")
    after = RunPlace(tmp_path, 1, before.run_id)
    record(after, "step1", "rank1")
    before.release()
    after.release()
    assert run_ids(tmp_path) == {"step0/rank": before.run_id, "step1/rank1": before.run_id}


# -- other layouts and other writers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [("rank0",), ("step0", "rank0")])
def test_an_api_dump_and_a_dump_replace_each_other(tmp_path: Path, places: tuple[str, ...]) -> None:
    folder = write_old(tmp_path, *places)
    for framework in ("torch", "mindspore", "mindtorch"):
        (folder / f"{framework}_api_dump_info.pkl").write_text("[]\n")
        (folder / f"{framework}_api_dump").mkdir()
        (folder / f"{framework}_api_dump" / "NN_Old_0_forward_output.npy").write_text("old")
    new = ("rank0",) if len(places) == 2 else ("step0", "rank")
    place = RunPlace(tmp_path, None)
    record(place, *new)
    place.release()
    assert tree(tmp_path) == sorted("/".join((*new, name)) for name in ("dump.json", "run.json"))


@pytest.mark.parametrize("has_run", [True, False])
def test_a_dump_without_an_id_is_replaced_too(tmp_path: Path, has_run: bool) -> None:
    folder = write_old(tmp_path, "step0", "rank", run_id=None)
    if not has_run:
        (folder / "run.json").unlink()  # msprobe's
    place = RunPlace(tmp_path, None)
    record(place, "step1", "rank", is_complete=False)
    assert list(run_ids(tmp_path)) == ["step1/rank"] and (tmp_path / "replaced_unknown" / "step0" / "rank").exists()
    record(place, "step2", "rank")
    place.release()
    assert not (tmp_path / "replaced_unknown").exists()


def test_a_folder_of_another_name_that_we_have_not_made_is_left_alone(tmp_path: Path) -> None:
    folder = write_old(tmp_path, "step0", "proc456", run_id=None)
    (folder / "run.json").unlink()  # msprobe's
    place = RunPlace(tmp_path, None)
    record(place, "step0", "rank")
    place.release()
    assert (folder / "dump.json").exists()


@pytest.mark.parametrize("run_id", ["../../outside", "a/b", 7, None, "x" * 500])
def test_an_id_that_is_none_is_not_used_as_a_name(tmp_path: Path, run_id: Any) -> None:
    write_old(tmp_path / "dump", "step0", "rank")
    (tmp_path / "dump" / "step0" / "rank" / "run.json").write_text(json.dumps({"run_id": run_id}))
    place = RunPlace(tmp_path / "dump", None)
    place.open("step0", "rank")
    place.release()
    assert (tmp_path / "dump" / "replaced_unknown" / "step0" / "rank" / "dump.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_two_runs_without_an_id_do_not_fall_together_when_they_are_moved(tmp_path: Path) -> None:
    for _ in range(2):
        write_old(tmp_path, "step0", "rank", run_id=None)
        earlier_run.move_aside(Folder(tmp_path), earlier_run.RunFolder(("step0", "rank")))
    assert [name for name in tree(tmp_path) if name.endswith("dump.json")] == [
        "replaced_unknown/step0/rank/dump.json",
        "replaced_unknown_2/step0/rank/dump.json",
    ]


def test_what_cannot_be_moved_is_said_and_neither_mixed_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_old(tmp_path, "step0", "rank")
    before = {name: (tmp_path / name).read_text() for name in tree(tmp_path)}

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    place = RunPlace(tmp_path, None)
    with pytest.raises(FileExistsError, match="of an earlier run, which could not be moved aside"):
        record(place, "step0", "rank")
    place.release()
    assert {name: (tmp_path / name).read_text() for name in tree(tmp_path)} == before
    assert "cannot be moved aside ([Errno 13] Permission denied); training goes on" in caplog.text


def test_a_rank_does_not_join_an_ended_run_whose_folder_a_new_process_has_locked(tmp_path: Path) -> None:
    """Rank 0 of the new run has its lock and has not yet moved the earlier run aside when rank 1 comes."""
    write_old(tmp_path, "step0", "rank0")
    first = RankLock(tmp_path, 0)
    second = RunPlace(tmp_path, 1)
    record(second, "step0", "rank1")
    assert second.run_id != OLD
    second.release()
    first.release()
