"""stack.json is whole after every stop, and a stop costs what was recorded since the last one."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.store.disk import write_all
from tensorprobe.store.folder import Folder
from tensorprobe.store.stack_file import StackFile
from tests.length import count_examples

WINDOWS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.text(max_size=12)), max_size=12), min_size=1, max_size=12)


def frames(stack: int) -> list[str]:
    return [f"File é.py, line {stack}, in f, \n x({stack})"] * (1 + stack)


def groups(path: Path) -> dict[str, Any]:
    """The names by the text of their stack: each stack stands once."""
    content = json.loads(path.read_text())
    found = {json.dumps(texts): names for names, texts in content.values()}
    assert len(found) == len(content)
    return found


def record(folder: Path, windows: list[list[tuple[int, str]]], *, in_one: bool) -> StackFile:
    file = StackFile(Folder(folder), "stack.json")
    expected: dict[str, list[str]] = {}
    for window in windows:
        for stack, name in window:
            file.add(name, stack, frames(stack))
            expected.setdefault(json.dumps(frames(stack)), []).append(name)
        if not in_one:
            file.close()
            assert groups(folder / "stack.json") == expected
    file.finish()
    assert groups(folder / "stack.json") == expected
    return file


@settings(max_examples=count_examples(60))
@given(WINDOWS)
def test_it_is_whole_after_every_window_and_in_the_end_as_if_there_had_been_one(
    windows: list[list[tuple[int, str]]],
) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        record(Path(one), windows, in_one=True)
        record(Path(other), windows, in_one=False)
        assert (Path(one) / "stack.json").read_bytes() == (Path(other) / "stack.json").read_bytes()
        assert [path.name for path in Path(other).iterdir()] == ["stack.json"]


class Traffic:
    """How many bytes go to the disk and come from it."""

    def __init__(self) -> None:
        self.total = self._now()

    @staticmethod
    def _now() -> int:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(lines["rchar"]) + int(lines["wchar"])

    def since(self) -> int:
        before, self.total = self.total, self._now()
        return self.total - before


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count bytes")
def test_a_stop_late_in_a_step_moves_no_more_bytes_than_an_early_one(tmp_path: Path) -> None:
    file, traffic = StackFile(Folder(tmp_path), "stack.json"), Traffic()
    moved: list[int] = []
    for window in range(1024):
        for stack in range(10):
            file.add(f"Torch.sin.{window:04}.forward", stack, frames(stack))
        file.close()
        if window in (255, 511, 1023):
            moved.append(traffic.since())
    first, second, rest = moved
    assert second < 1.5 * first and rest < 3 * first  # twice as many windows: a file written anew would be four times


def test_a_file_that_somebody_took_away_or_changed_is_made_anew(tmp_path: Path) -> None:
    file, path = StackFile(Folder(tmp_path), "stack.json"), tmp_path / "stack.json"
    for number, spoil in enumerate([lambda: None, path.unlink, lambda: path.write_text("{"), lambda: None]):
        file.add(f"call.{number}", 1, frames(1))
        spoil()
        file.close()
        assert groups(path) == {json.dumps(frames(1)): [f"call.{count}" for count in range(number + 1)]}


def test_after_a_full_disk_it_is_whole_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, path = StackFile(Folder(tmp_path), "stack.json"), tmp_path / "stack.json"
    for window in range(3):
        file.add(f"call.{window}", 1, frames(1))
        file.close()
    file.add("call.3", 1, frames(1))
    file.flush()

    def write_half(descriptor: int, data: bytes) -> None:
        write_all(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tensorprobe.store.disk.write_all", write_half)
        with pytest.raises(OSError, match="No space left"):
            file.close()
    file.close()
    assert groups(path) == {json.dumps(frames(1)): ["call.0", "call.1", "call.2", "call.3"]}
