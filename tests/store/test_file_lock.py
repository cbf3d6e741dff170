"""Locks on small files in a dump_path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorprobe.store import file_lock
from tensorprobe.store.file_lock import LockedByAnotherError, find_owner, give_lock, one_at_a_time, take_lock
from tensorprobe.store.folder import Folder, LinkError

fcntl = pytest.importorskip("fcntl")
NAME = ".rank.lock"


def test_a_lock_is_held_until_it_is_given_back(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert find_owner(folder, NAME) is None
    descriptor = take_lock(folder, NAME)
    assert find_owner(folder, NAME) == str(os.getpid())
    with pytest.raises(LockedByAnotherError, match=str(os.getpid())):
        take_lock(folder, NAME)
    give_lock(folder, NAME, descriptor)
    assert find_owner(folder, NAME) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_file_that_its_owner_removed_between_opening_and_locking_is_no_lock(
    is_made_anew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    seen: list[int] = []

    def lock_late(descriptor: int, how: int) -> None:
        if not seen:  # the owner ends just now, and perhaps a third process comes before us
            (tmp_path / NAME).unlink()
            if is_made_anew:
                (tmp_path / NAME).touch()
        seen.append(descriptor)
        lock(descriptor, how)

    with monkeypatch.context() as patched:
        patched.setattr(file_lock.fcntl, "flock", lock_late)
        descriptor = take_lock(Folder(tmp_path), NAME)
    assert len(seen) == 2
    assert find_owner(Folder(tmp_path), NAME) is not None, "what has the name is not what was locked"
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / NAME).stat())
    give_lock(Folder(tmp_path), NAME, descriptor)


@pytest.mark.parametrize("kind", ["link", "further name", "folder", "link to nowhere"])
def test_what_is_no_lock_file_is_neither_taken_nor_changed(kind: str, tmp_path: Path) -> None:
    folder, mine = Folder(tmp_path / "dump"), tmp_path / "mine"
    folder.make()
    mine.write_text("precious")
    path = tmp_path / "dump" / NAME
    if kind == "link":
        path.symlink_to(mine)
    elif kind == "further name":
        os.link(mine, path)
    elif kind == "link to nowhere":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
    with pytest.raises(LinkError, match=r"\.rank\.lock is (a link|a further name of another file|not a plain file)"):
        take_lock(folder, NAME)
    assert mine.read_text() == "precious" and not (tmp_path / "nowhere").exists()


def test_only_one_is_inside_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    with one_at_a_time(folder):
        assert find_owner(folder, ".run.lock") is not None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(file_lock, "_MUTEX_SECONDS", 0.05)
    descriptor = take_lock(folder, ".run.lock")  # by a process that was stopped
    with one_at_a_time(folder):
        pass
    assert find_owner(folder, ".run.lock") is not None
    give_lock(folder, ".run.lock", descriptor)
