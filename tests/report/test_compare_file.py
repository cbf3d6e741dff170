"""The files of a comparison: whole or not at all, in a folder that was looked at before the long work."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.compare.result import Comparison, Verdict
from tensorprobe.compare.row import Block, count_block
from tensorprobe.errors import UsageError
from tensorprobe.report import compare_file
from tensorprobe.report.compare_file import FILES, Written, prepared_folder, read_files
from tensorprobe.report.compare_summary import summarize
from tests.report.comparison import HOSTILE_NAMES, comparison, gelu_fault, hostile
from tests.report.dump_files import forward, write_rank

pytest.importorskip("xlsxwriter")


ALL = tuple(FILES.values())


def write_files(folder: Path, found: Comparison, files: Sequence[str] = tuple(FILES), **more: Any) -> Written:
    return compare_file.write_files(folder, summarize(found), files, **more)


def test_four_files_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "result"
    with prepared_folder(folder, (), ALL):
        written = write_files(folder, gelu_fault())
    assert [path.name for path in written.paths] == list(ALL)
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.paths} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert written.notes == ()


def test_older_files_are_replaced_whole(tmp_path: Path) -> None:
    write_files(tmp_path, gelu_fault())
    long = (tmp_path / "compare.csv").stat().st_size
    write_files(tmp_path, comparison())
    assert (tmp_path / "compare.csv").stat().st_size < long
    assert json.loads((tmp_path / "compare.json").read_text())["agree"] is True


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_no_name_makes_a_file_elsewhere(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner" / "result"
    with prepared_folder(folder, (), ALL):
        write_files(folder, hostile(name))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == sorted(ALL)
    assert {path.parent for path in files} == {folder}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result").write_text("mine")
    with (
        pytest.raises(UsageError, match=r"result is a file. Give a folder; compare.csv"),
        prepared_folder(tmp_path / "result", (), ALL),
    ):
        raise AssertionError("the long work began")
    assert (tmp_path / "result").read_text() == "mine"


def test_a_folder_beneath_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(UsageError, match=r"cannot be written to \(Not a directory\)"),
        prepared_folder(tmp_path / "file" / "result", (), ALL),
    ):
        raise AssertionError("the long work began")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"), prepared_folder(tmp_path, (), ALL):
        raise AssertionError("the long work began")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write")
def test_a_folder_in_which_nobody_can_write_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be written to"), prepared_folder(Path("/proc/result"), (), ALL):
        raise AssertionError("the long work began")


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("", ""),
        ("step0", "step0"),
        ("step0/rank", "step0/rank/dump.json"),
        ("new", ""),
        ("step0/rank/new", "step0"),
        ("step0/rank/new", "step0/rank/dump.json"),
        ("", "step0/rank"),  # what was not named of it is a dump too
        ("step0", "step0/rank"),
    ],
)
def test_a_dump_is_no_place_for_the_files(place: str, named: str, tmp_path: Path) -> None:
    write_rank(tmp_path / "dump" / "step0" / "rank", {"Torch.add.0.forward": forward()})
    with (
        pytest.raises(UsageError, match="Give a folder of its own"),
        prepared_folder(tmp_path / "dump" / place, (tmp_path / "dump" / named,), ALL),
    ):
        raise AssertionError("the long work began")


def test_the_folder_around_two_dumps_is_a_place(tmp_path: Path) -> None:
    dumps = tuple(tmp_path / name for name in ("good", "bad"))
    for dump in dumps:
        write_rank(dump / "step0" / "rank", {"Torch.add.0.forward": forward()})
    with prepared_folder(tmp_path, dumps, ALL):
        write_files(tmp_path, comparison())
    assert (tmp_path / "compare.csv").is_file()


def test_work_that_was_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), prepared_folder(tmp_path / "a" / "result", (), ALL):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", ["write_csv", "write_page", "write_xlsx", "write_json"])
def test_a_write_that_was_interrupted_leaves_no_half_file(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(compare_file, writer)

    def interrupted(*arguments: object) -> None:
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_file, writer, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, gelu_fault())
    kept = {"write_csv": 0, "write_page": 1, "write_xlsx": 2, "write_json": 3}[writer]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ALL[:kept])


def test_the_work_is_counted(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_files(tmp_path, gelu_fault(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 36) for done in (7, 9, 16, 18, 25, 27, 34, 36)]


def test_a_row_is_made_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = compare_file.iter_blocks

    def counted(found: Comparison) -> Iterator[Block]:
        for block in original(found):
            made.append(count_block(block))
            yield block

    monkeypatch.setattr(compare_file, "iter_blocks", counted)
    write_files(tmp_path, gelu_fault())
    assert sum(made) == 9


def test_only_the_files_that_are_asked_for_are_written(tmp_path: Path) -> None:
    assert [path.name for path in write_files(tmp_path, gelu_fault(), read_files(None)).paths] == [
        "compare.csv",
        "report.html",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.csv", "report.html"]


@pytest.mark.parametrize(
    ("text", "names"), [(None, ("csv", "html")), ("json", ("json",)), (" XLSX, csv,csv", ("csv", "xlsx"))]
)
def test_files_are_asked_for_by_their_kind(text: str | None, names: tuple[str, ...]) -> None:
    assert read_files(text) == names


@pytest.mark.parametrize("text", ["csv,pdf", "pdf"])
def test_a_kind_of_file_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--files '{text}': 'pdf' is not one of csv, html, xlsx, json. Give some: "):
        read_files(text)


def test_without_workbooks_nothing_that_writes_them_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with prepared_folder(tmp_path / "result", (), ("compare.csv",)):
        write_files(tmp_path / "result", gelu_fault(), ("csv",))
    with (
        pytest.raises(UsageError, match=r"compare\.xlsx needs xlsxwriter"),
        prepared_folder(tmp_path / "other", (), ("compare.csv", "compare.xlsx")),
    ):
        raise AssertionError("the long work began")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "compare.xlsx").mkdir()
    with pytest.raises(UsageError, match=r"compare.xlsx could not be written \(Is a directory\)"):
        write_files(tmp_path, gelu_fault())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.csv", "compare.xlsx", "report.html"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_full(path: Path, flags: int) -> int:
        path.touch()
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr("tensorprobe.store.layout.open_private", open_full)
    with pytest.raises(UsageError, match=r"compare.csv could not be written \(No space left on device\)"):
        write_files(tmp_path, gelu_fault())
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_of_nothing_has_files_too(tmp_path: Path) -> None:
    write_files(tmp_path, Comparison("good", "bad", (), Verdict("not compared", "Nothing could be compared.")))
    assert json.loads((tmp_path / "compare.json").read_text())["rows"] == []
    assert len((tmp_path / "compare.csv").read_text().splitlines()) == 1
