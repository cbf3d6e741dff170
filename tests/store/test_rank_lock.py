"""Which process has the folders of a rank."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe.store import file_lock, rank_lock
from tensorprobe.store.rank_lock import RankLock
from tests.integration.script import SOURCE

HOLD = """
import sys
from pathlib import Path
from tensorprobe.store.rank_lock import RankLock
lock = RankLock(Path(sys.argv[1]), None)
print(lock.name, flush=True)
sys.stdin.read()
"""


class OtherProcess:
    """Takes the folders of `rank`, until it is told to end."""

    def __init__(self, dump_path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(dump_path)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.folder_name = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_first_process_has_the_rank_and_the_second_says_where_its_records_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = OtherProcess(tmp_path)
    try:
        with caplog.at_level(logging.WARNING, "tensorprobe"):
            lock = RankLock(tmp_path, None)
        assert other.folder_name == "rank"
        assert lock.name == f"proc{os.getpid()}"
        assert caplog.messages == [
            f"process {other.process.pid}, which is still running, records into rank in {tmp_path}; "
            f"the records of this process go to proc{os.getpid()} beside it"
        ]
        assert RankLock(tmp_path, 1).name == "rank1"  # another rank is another folder
    finally:
        other.kill()


def test_a_lock_ends_with_its_process_and_what_a_killed_one_leaves_does_not_matter(tmp_path: Path) -> None:
    OtherProcess(tmp_path).kill()
    assert [path.name for path in tmp_path.iterdir()] == [".rank.lock"]
    lock = RankLock(tmp_path, None)
    assert lock.name == "rank"
    lock.release()
    assert not list(tmp_path.iterdir())


def test_sessions_of_one_process_share_the_rank_until_the_last_has_ended(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    first, second = RankLock(tmp_path, None), RankLock(tmp_path / "link", None)
    assert second.name == "rank"
    first.release()
    assert OtherProcess(tmp_path).folder_name.startswith("proc")
    second.release()
    other = OtherProcess(tmp_path)
    assert other.folder_name == "rank"
    other.kill()


def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_rank(tmp_path: Path) -> None:
    fork = "import os\nif os.fork() == 0:\n    print('child', flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
    program = HOLD.replace("sys.stdin.read()", f"{fork}os._exit(0)", 1)
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert {started.stdout.readline(), started.stdout.readline()} == {"rank\n", "child\n"}
    assert started.wait() == 0
    lock = RankLock(tmp_path, None)
    assert lock.name == "rank"
    lock.release()
    started.communicate()


@pytest.mark.parametrize("reason", ["platform", "file system"])
def test_where_nothing_can_be_locked_that_is_said_once(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(rank_lock, "_is_said", False)
    if reason == "platform":
        monkeypatch.setattr(file_lock, "fcntl", None)
    else:
        monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, "tensorprobe"):
        locks = [RankLock(tmp_path, None), RankLock(tmp_path, 1)]
    assert [lock.name for lock in locks] == ["rank", "rank1"]
    assert len(caplog.messages) == 1
    assert "cannot be locked here" in caplog.text and "give each process a dump_path of its own" in caplog.text
    for lock in locks:
        lock.release()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_a_folder_in_the_place_of_the_lock_is_said_and_left_alone(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dump" / ".rank.lock"
    path.parent.mkdir()
    (tmp_path / "mine").write_text("precious")
    path.symlink_to(tmp_path / "mine") if kind == "link" else path.mkdir()
    lock = RankLock(tmp_path / "dump", None)
    lock.release()
    assert lock.name == "rank" and (tmp_path / "mine").read_text() == "precious" and path.exists()
    (message,) = caplog.messages
    assert message.startswith(f"{path} is {'a link' if kind == 'link' else 'not a plain file'}")
    assert message.endswith("until then nothing keeps a second process out of this dump_path")


def test_a_folder_that_cannot_be_written_is_no_error_here(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lock = RankLock(tmp_path / "file" / "dump", None)
    assert lock.name == "rank"
    lock.release()
