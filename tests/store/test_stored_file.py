"""The same questions, of files here and in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import stored_file
from tensorprobe.store.remote import NoPackageError, open_filesystem

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def second(store: Any) -> None:
    store.pipe("/run/b.json", b"second")


def test_what_is_there_is_listed_and_not_copied(store: Any) -> None:
    path = stored_file.locate("memory://run")
    assert stored_file.names(path) == ["b.json", "step0"]
    assert stored_file.is_folder(path / "step0")
    assert not stored_file.is_file(path / "step0")
    assert stored_file.is_file(path / "b.json")
    assert stored_file.size_bytes(path / "b.json") == 6
    assert stored_file.size_bytes(path / "none") == 0
    assert not path.exists()
    assert stored_file.show(path / "b.json") == "memory://run/b.json"


def test_a_file_is_copied_when_it_is_asked_for_and_again_when_it_is_another(store: Any) -> None:
    path = stored_file.locate("memory://run") / "b.json"
    assert stored_file.bring(path).read_bytes() == b"second"
    before = path.stat().st_ino
    assert stored_file.bring(path).stat().st_ino == before
    store.pipe("/run/b.json", b"third!")
    stored_file.locate("memory://run")
    assert stored_file.bring(path).read_bytes() == b"third!"


def test_a_file_that_is_gone_is_not_read_from_its_copy(store: Any) -> None:
    path = stored_file.locate("memory://run") / "b.json"
    stored_file.bring(path)
    store.rm_file("/run/b.json")
    stored_file.locate("memory://run")
    assert not stored_file.bring(path).exists()


def test_a_file_keeps_its_identity_wherever_its_copy_is(store: Any) -> None:
    path = stored_file.locate("memory://run") / "b.json"
    before = stored_file.identify(path)
    stored_file.bring(path)
    assert stored_file.identify(path) == before
    assert stored_file.identify(path.with_name("none")) is None


def test_many_files_come_at_once(store: Any) -> None:
    for number in range(40):
        store.pipe(f"/run/many/{number}", bytes(number))
    folder = stored_file.locate("memory://run") / "many"
    stored_file.bring_all(folder / str(number) for number in range(41))  # one of them is not there
    assert sorted(path.stat().st_size for path in folder.iterdir()) == list(range(40))


def test_a_path_of_this_machine_is_itself(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert stored_file.locate(tmp_path) == tmp_path
    assert stored_file.names(tmp_path) == ["x"]
    assert stored_file.bring(tmp_path / "x") == tmp_path / "x"
    assert not stored_file.is_stored(tmp_path)


def test_a_store_that_nobody_knows_says_so() -> None:
    with pytest.raises(NoPackageError, match="fsspec knows no store 'nosuch'"):
        open_filesystem("nosuch://bucket")
