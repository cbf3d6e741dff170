"""The writer appends, makes whole, goes on, and leaves nothing half-done behind when the disk is full."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import writer as writer_module
from tensorprobe.store.disk import write_over, write_whole
from tensorprobe.store.folder import Folder
from tensorprobe.store.stack_file import StackFile
from tensorprobe.store.writer import AppendedObject, RankWriter, encode_run

FULL = OSError(28, "No space left on device")


def make_object(folder: Path) -> AppendedObject:
    return AppendedObject(Folder(folder), "dump.json", '{"task": "tensor", "data": {', "}}")


def entries(*numbers: int) -> list[str]:
    return [f'"call.{number}": {number}' for number in numbers]


def content(folder: Path, name: str = "dump.json") -> Any:
    return json.loads((folder / name).read_text())


def part(folder: Path) -> Any:
    return json.loads((folder / "dump.json.part").read_text() + "}}")


def data(*numbers: int) -> dict[str, int]:
    return {f"call.{number}": number for number in numbers}


class Disk:
    """A disk that has room for so many bytes more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room_bytes = 10**9
        self._write = os.write
        monkeypatch.setattr(writer_module.os, "write", self.write)

    def write(self, descriptor: int, view: Any) -> int:
        if not self.room_bytes:
            raise FULL
        written = self._write(descriptor, bytes(view[: self.room_bytes]))
        self.room_bytes -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_part_is_the_file_without_its_end(tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append(entries(0))
    file.append(entries(1, 2))
    assert part(tmp_path)["data"] == data(0, 1, 2) and not (tmp_path / "dump.json").exists()
    file.close()
    assert content(tmp_path) == {"task": "tensor", "data": data(0, 1, 2)}
    assert not (tmp_path / "dump.json.part").exists()


def test_one_entry_stands_on_one_line(tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append(entries(0, 1))
    file.close()
    assert (tmp_path / "dump.json").read_text() == ('{"task": "tensor", "data": {\n"call.0": 0,\n"call.1": 1\n}}\n')


def test_a_whole_file_is_opened_again_and_extended(tmp_path: Path) -> None:
    file = make_object(tmp_path)
    for number in range(3):
        file.append(entries(number))
        file.close()
        file.close()
        assert content(tmp_path)["data"] == data(*range(number + 1))


def test_a_file_without_entries_is_whole_too_and_can_be_extended(tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append([])
    file.close()
    assert content(tmp_path)["data"] == {}
    file.append(entries(0))
    file.close()
    assert content(tmp_path)["data"] == data(0)


def test_close_without_a_file_does_nothing(tmp_path: Path) -> None:
    make_object(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_left_out_whole_and_what_comes_later_is_written(disk: Disk, tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append(entries(0))
    disk.room_bytes = 5
    with pytest.raises(OSError, match="No space left"):
        file.append(entries(1))
    assert part(tmp_path)["data"] == data(0)
    disk.room_bytes = 10**9
    file.append(entries(2))
    file.close()
    assert content(tmp_path)["data"] == data(0, 2)


@pytest.mark.parametrize("room_bytes", [0, 7])
def test_a_header_that_does_not_fit_is_written_the_next_time(disk: Disk, room_bytes: int, tmp_path: Path) -> None:
    file = make_object(tmp_path)
    disk.room_bytes = room_bytes
    with pytest.raises(OSError, match="No space left"):
        file.append(entries(0))
    assert list(tmp_path.iterdir()) == [] and not file.is_begun
    disk.room_bytes = 10**9
    file.append(entries(1))
    file.close()
    assert content(tmp_path)["data"] == data(1)


def test_an_end_that_does_not_fit_leaves_a_readable_part(disk: Disk, tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append(entries(0))
    disk.room_bytes = 2
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert part(tmp_path)["data"] == data(0)
    disk.room_bytes = 10**9
    file.close()
    assert content(tmp_path)["data"] == data(0)


def test_ctrl_c_while_writing_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_object(tmp_path)
    file.append(entries(0))

    def interrupt(descriptor: int, view: Any) -> int:
        os.pwrite(descriptor, bytes(view[:4]), os.lseek(descriptor, 0, os.SEEK_END))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writer_module.os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            file.append(entries(1))
    file.append(entries(2))
    file.close()
    assert content(tmp_path)["data"] == data(0, 2)


def test_a_file_that_the_user_took_away_is_begun_anew(tmp_path: Path) -> None:
    file = make_object(tmp_path)
    file.append(entries(0))
    file.close()
    (tmp_path / "dump.json").unlink()
    file.append(entries(1))
    file.close()
    assert content(tmp_path)["data"] == data(1)


# -- stack.json --------------------------------------------------------------------------------------------------------

F, G = ("File a.py, line 1, in f, \n x()",), ("File a.py, line 2, in g, \n y()",)


def test_each_distinct_stack_stands_once_with_the_calls_that_have_it(tmp_path: Path) -> None:
    file = StackFile(Folder(tmp_path), "stack.json")
    for number, (name, frames) in enumerate([("a", F), ("b", G), ("c", F)]):
        file.add(name, 10 + number, frames)
    file.add("d", 11, G)
    file.close()
    assert content(tmp_path, "stack.json") == {"0": [["a", "c"], [*F]], "1": [["b", "d"], [*G]]}


def test_its_part_is_a_journal_that_stays_until_the_step_is_over(tmp_path: Path) -> None:
    file = StackFile(Folder(tmp_path), "stack.json")
    file.add("a", 7, F)
    file.close()
    file.add("b", 7, F)
    file.flush()
    lines = [json.loads(line) for line in (tmp_path / "stack.json.part").read_text().splitlines()]
    assert lines == [["stack", 0, [*F]], ["call", 0, "a"], ["call", 0, "b"]]
    file.finish()
    assert content(tmp_path, "stack.json") == {"0": [["a", "b"], [*F]]}
    assert not (tmp_path / "stack.json.part").exists()


def test_it_is_made_again_only_when_there_is_something_new(tmp_path: Path) -> None:
    file = StackFile(Folder(tmp_path), "stack.json")
    file.add("a", 7, F)
    file.close()
    before = (tmp_path / "stack.json").stat().st_ino
    file.close()
    assert (tmp_path / "stack.json").stat().st_ino == before


def test_a_stack_whose_line_did_not_fit_is_written_with_the_next_calls(disk: Disk, tmp_path: Path) -> None:
    file = StackFile(Folder(tmp_path), "stack.json")
    file.add("lost", 7, F)
    disk.room_bytes = 5
    with pytest.raises(OSError, match="No space left"):
        file.flush()
    disk.room_bytes = 10**9
    file.add("kept", 7, F)
    file.finish()
    assert content(tmp_path, "stack.json") == {"0": [["kept"], [*F]]}


# -- all files of a rank -----------------------------------------------------------------------------------------------


def make_rank(folder: Path, *, has_construct: bool = True, has_extra: bool = True) -> RankWriter:
    return RankWriter(Folder(folder), {"task": "tensor"}, has_construct=has_construct, has_extra=has_extra)


def fill(rank: RankWriter) -> None:
    rank.append_records([("call.0", {})])
    rank.append_parents([("call.0", "Module.Net.forward.0")])
    rank.add_stack("call.0", 7, F)
    rank.flush_stacks()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_rank_has_its_four_files(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    rank.open({"complete": False})
    fill(rank)
    rank.close({"complete": True}, is_finished=True)
    assert names(tmp_path) == ["construct.json", "dump.json", "run.json", "stack.json"]
    assert content(tmp_path, "construct.json") == {"call.0": "Module.Net.forward.0"}
    assert content(tmp_path, "run.json") == {"complete": True}


def test_at_l1_construct_json_is_empty(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, has_construct=False)
    fill(rank)
    rank.close({}, is_finished=True)
    assert content(tmp_path, "construct.json") == {}


def test_without_extra_information_there_is_no_stack_and_no_construct(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, has_extra=False)
    fill(rank)
    rank.close({}, is_finished=True)
    assert names(tmp_path) == ["dump.json", "run.json"]


def test_single_points_alone_leave_no_files_of_calls(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    rank.append_debug([("x.0.debug", None)])
    rank.close({}, is_finished=True)
    assert names(tmp_path) == ["debug.json", "run.json"]


def test_a_file_that_cannot_be_closed_does_not_keep_the_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = make_rank(tmp_path)
    fill(rank)

    def fail() -> None:
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(rank._dump, "close", fail)
        with pytest.raises(OSError, match="No space left"):
            rank.close({}, is_finished=False)
    assert {"construct.json", "stack.json", "run.json", "dump.json.part"} <= set(names(tmp_path))
    rank.close({}, is_finished=True)
    assert names(tmp_path) == ["construct.json", "dump.json", "run.json", "stack.json"]


def test_abandon_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    fill(rank)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rank.abandon()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["dump.json.part", "debug.json", "dump_tensor_data", ".dump.json.tmp", "stack.json"])
def test_where_files_of_an_earlier_run_are_nothing_is_written_and_nothing_removed(name: str, tmp_path: Path) -> None:
    if name == "stack.json":
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    elif name == "dump_tensor_data":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    rank = make_rank(tmp_path)
    words = rf"{name} of an earlier run, which could not be moved aside: remove it, or give another dump_path"
    with pytest.raises(FileExistsError, match=words):
        rank.open({})
    with pytest.raises(FileExistsError, match=words):
        rank.append_records([("call.0", {})])
    with pytest.raises(FileExistsError, match=words):
        rank.folder.child("dump_tensor_data").create("a.pt")
    assert names(tmp_path) == sorted([name, "mine.txt"])


def test_files_that_belong_to_no_dump_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    make_rank(tmp_path).open({})
    assert names(tmp_path) == ["mine.txt", "run.json"]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    rank = make_rank(folder)
    rank.open({})
    fill(rank)
    rank.append_debug([("x.0.debug", None)])
    rank.close({}, is_finished=True)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


def test_no_temporary_file_is_left_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(os, "replace", lambda *_, **__: fail())
    with pytest.raises(OSError, match="No space left"):
        write_whole(Folder(tmp_path), "run.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_written_over_where_it_fits_into_its_block(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("{" + " " * 100 + "}")
    folder = Folder(tmp_path)
    assert write_over(folder, "run.json", '{"longer": "' + "x" * 3000 + '"}') and path.read_text().endswith('x"}')
    assert write_over(folder, "run.json", "{}") and path.read_text() == "{}"
    assert not write_over(folder, "run.json", "x" * 5000) and path.read_text() == "{}"


def test_run_json_is_what_json_writes_also_where_something_in_it_has_changed() -> None:
    run: dict[str, Any] = {
        "count": 1,
        "nested": {"list": [1, {"none": None}], "empty": {}},
        "text": "a\n",
        "path": Path("x"),
    }
    for change in ({}, {"count": True}, {"text": "b"}):
        run |= change
        run["nested"]["list"].append(2.5)
        assert encode_run(run) == json.dumps(run, indent=1, default=str) + "\n"
