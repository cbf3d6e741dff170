"""Only regular files are opened; nothing is waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tensorprobe.regular_file import open_regular


def reason(path: str | Path) -> str | None:
    with pytest.raises(OSError) as caught:
        open_regular(path)
    return caught.value.strerror


def test_a_file_and_a_link_to_one_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to("a")
    for name in "ab":
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"x"


def test_pipes_devices_sockets_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        assert reason(tmp_path / "pipe") == reason(os.devnull) == "not a regular file"
        assert reason(tmp_path / "folder") == "Is a directory"
        assert reason(tmp_path / "loop") and reason(tmp_path / "socket")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_no_file_can_be_called_is_refused(name: str) -> None:
    assert reason(name) == "no file can have this name"
