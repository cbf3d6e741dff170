"""Source lines in a page: only of a Python file that still says what was recorded, and never of any other file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorprobe.report.page.source_line import find_source

CODE = [f"line_{number} = {number}" for number in range(1, 21)]


def frame(path: Path | str, line: object, code: str) -> str:
    return f"File {path}, line {line}, in forward, \n {code}"


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_line_comes_with_its_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", [f"    {line}" for line in CODE])
    found = find_source(frame(path, 10, "line_10 = 10"))
    assert found is not None
    assert (found["file"], found["line"], found["first"]) == ("model.py", 10, 5)
    assert found["lines"] == [f"    {line}" for line in CODE[4:15]]


def test_at_the_ends_of_a_file_there_are_fewer_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", CODE)
    first, last = find_source(frame(path, 1, CODE[0])), find_source(frame(path, 20, CODE[-1]))
    assert first is not None and last is not None
    assert (first["first"], first["lines"]) == (1, CODE[:6])
    assert last["lines"][:6] == CODE[14:]


def test_a_file_that_has_changed_is_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", CODE)
    assert find_source(frame(path, 10, "y = self.fc(x)")) is None
    assert find_source(frame(path, 10, "")) is None
    assert find_source(frame(path, 21000, "line_10 = 10")) is None
    assert find_source(frame(path, 0, "")) is None


@pytest.mark.parametrize("line", [1, 2, "١", "9" * 5000, "-1", "x"])
def test_a_dump_that_names_a_file_of_the_system_shows_nothing_of_it(line: object) -> None:
    assert find_source(frame("/etc/passwd", line, "x = f(x)")) is None
    with Path("/etc/passwd").open() as file:
        content = file.readline().strip()
    assert find_source(frame("/etc/passwd", 1, content)) is None  # also if its content was guessed


@pytest.mark.parametrize(
    "path", ["/dev/zero.py", "/", "", "nowhere/model.py", "\0.py", "\ud800.py", "x" * 5000 + ".py", "<string>"]
)
def test_what_is_no_file_is_not_shown(path: str) -> None:
    assert find_source(frame(path, 1, "x")) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe with a name")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert find_source(frame(tmp_path / "pipe.py", 1, "x")) is None


def test_a_file_that_is_too_large_or_no_text_is_not_shown(tmp_path: Path) -> None:
    large = write(tmp_path / "large.py", ["x = 1", "#" * (3 << 20)])
    assert find_source(frame(large, 1, "x = 1")) is None
    (tmp_path / "bytes.py").write_bytes(b"x = 1\n\xff\xfe\n")
    assert find_source(frame(tmp_path / "bytes.py", 1, "x = 1")) is None
    (tmp_path / "zero.py").write_bytes(b"x = 1\n\0\n")
    assert find_source(frame(tmp_path / "zero.py", 1, "x = 1")) is None


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", ["x = 1", "y = '" + "z" * 5000 + "'"])
    found = find_source(frame(path, 1, "x = 1"))
    assert found is not None and max(map(len, found["lines"])) == 400


@pytest.mark.parametrize("text", [None, "", "no frame", "File model.py, line 3", "File , line , in , \n"])
def test_a_frame_of_another_form_is_not_taken_apart(text: str | None) -> None:
    assert find_source(text) is None
