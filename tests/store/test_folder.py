"""Folders of a dump are reached without following a link, with descriptors and, where there are none, without."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorprobe.store import folder as folder_module
from tensorprobe.store.folder import Folder, LinkError

WORDS = "is a link, and no link inside a dump_path is followed: remove it, or give another dump_path"


@pytest.fixture(autouse=True, params=["by descriptor", "by path"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By path: as it has to be done on Windows."""
    if request.param == "by path":
        monkeypatch.setattr(folder_module, "_has_descriptors", False)
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody's, to which links lead."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "weights.pt").write_text("precious")
    return made


@pytest.fixture
def dump(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "dump")


def write(folder: Folder, name: str, text: bytes = b"new") -> None:
    with os.fdopen(folder.create(name), "wb") as file:
        file.write(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folders_are_made_with_the_first_file_for_their_owner_only(dump: Folder) -> None:
    write(dump.child("step0").child("rank"), "dump.json")
    paths = [dump.path, dump.path / "step0", dump.path / "step0" / "rank"]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o700}
    assert (paths[-1] / "dump.json").read_text() == "new"
    assert (paths[-1] / "dump.json").stat().st_mode & 0o777 == 0o600


def test_the_first_folder_may_be_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "dump").symlink_to(outside)
    write(Folder(tmp_path / "dump").child("step0"), "dump.json")
    assert (outside / "step0" / "dump.json").read_text() == "new"


@pytest.mark.parametrize("places", [("step0",), ("step0", "rank"), ("step0", "rank", "dump_tensor_data")])
@pytest.mark.parametrize(
    "use",
    [
        lambda folder: folder.create("a.pt"),
        lambda folder: folder.open("weights.pt", os.O_RDWR),
        lambda folder: folder.open("a.pt", os.O_WRONLY | os.O_CREAT),
        lambda folder: folder.unlink("weights.pt"),
        lambda folder: folder.link("weights.pt", "b.pt"),
        lambda folder: folder.replace("weights.pt", "b.pt"),
        lambda folder: folder.names(),
        lambda folder: folder.make(),
        lambda folder: folder.open_whole("weights.pt").__enter__(),
        lambda folder: folder.child("below").make(),
    ],
)
def test_a_link_in_the_place_of_a_folder_is_refused_and_its_target_left_alone(
    dump: Folder, outside: Path, places: tuple[str, ...], use: Callable[[Folder], object]
) -> None:
    *above, last = places
    dump.path.joinpath(*above).mkdir(parents=True)
    dump.path.joinpath(*places).symlink_to(outside)
    folder = dump
    for name in places:
        folder = folder.child(name)
    with pytest.raises(LinkError, match=f"{last} {WORDS}"):
        use(folder)
    assert names(outside) == ["weights.pt"] and (outside / "weights.pt").read_text() == "precious"


def test_a_link_in_the_place_of_a_file_is_refused_and_its_target_left_alone(dump: Folder, outside: Path) -> None:
    dump.make()
    (dump.path / "dump.json.part").symlink_to(outside / "weights.pt")
    (dump.path / "new.json").symlink_to(outside / "made")
    uses: list[Callable[[], object]] = [
        lambda: dump.create("dump.json.part"),
        lambda: dump.create("new.json"),
    ]
    if hasattr(os, "O_NOFOLLOW"):
        uses += [
            lambda: dump.open("dump.json.part", os.O_RDWR),
            lambda: dump.open("new.json", os.O_WRONLY | os.O_CREAT),
            lambda: dump.read("dump.json.part", 10),
        ]
    for use in uses:
        with pytest.raises(LinkError, match=WORDS):
            use()
    assert names(outside) == ["weights.pt"] and (outside / "weights.pt").read_text() == "precious"


def test_a_link_is_replaced_and_removed_itself_and_not_what_it_leads_to(dump: Folder, outside: Path) -> None:
    dump.make()
    (dump.path / "run.json").symlink_to(outside / "weights.pt")
    with dump.open_whole("run.json") as file:
        file.write(b"{}")
    assert not (dump.path / "run.json").is_symlink() and (dump.path / "run.json").read_text() == "{}"
    (dump.path / "link").symlink_to(outside / "weights.pt")
    dump.unlink("link")
    assert names(dump.path) == ["run.json"] and (outside / "weights.pt").read_text() == "precious"


def test_an_older_file_is_not_written_into(dump: Folder, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    dump.make()
    os.link(tmp_path / "mine", dump.path / "dump.json.part")
    write(dump, "dump.json.part")
    assert (dump.path / "dump.json.part").read_text() == "new" and (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_plain_file_is_refused_at_once(dump: Folder, make: Callable[[Path], None]) -> None:
    dump.make()
    make(dump.path / "dump.json")
    for use in (lambda: dump.create("dump.json"), lambda: dump.open("dump.json", os.O_WRONLY)):
        with pytest.raises(LinkError, match=r"dump.json is not a plain file: remove it, or give another dump_path"):
            use()


def test_a_file_in_the_place_of_a_folder_is_an_error(dump: Folder) -> None:
    write(dump, "step0")
    with pytest.raises(NotADirectoryError):
        dump.child("step0").create("dump.json")


def test_a_folder_that_somebody_removed_is_made_again(dump: Folder) -> None:
    rank = dump.child("step0").child("rank")
    write(rank, "a")
    (rank.path / "a").unlink()
    rank.path.rmdir()
    rank.path.parent.rmdir()
    dump.path.rmdir()
    write(rank, "b")
    assert names(rank.path) == ["b"]


def test_what_is_open_is_written_to_wherever_it_was_moved(dump: Folder, tmp_path: Path, way: str) -> None:
    rank = dump.child("rank")
    write(rank, "a")
    (dump.path / "rank").rename(tmp_path / "moved")
    write(rank, "b")
    assert names(tmp_path / "moved") == (["a", "b"] if way == "by descriptor" else ["a"])


def test_after_a_refusal_nothing_is_done_in_it_or_below(dump: Folder) -> None:
    tensors = dump.child("dump_tensor_data")
    write(tensors, "a.pt")
    dump.refuse(OSError(17, "no"))
    for use in (lambda: tensors.create("b.pt"), lambda: dump.create("b"), lambda: tensors.unlink("a.pt")):
        with pytest.raises(OSError, match="no"):
            use()
    assert names(tensors.path) == ["a.pt"]


def test_only_empty_folders_are_removed_and_never_the_first(dump: Folder) -> None:
    write(dump.child("step0").child("rank1"), "a")
    dump.child("step0").child("rank").make()
    dump.child("step0").child("rank").remove()
    assert names(dump.path / "step0") == ["rank1"]
    dump.child("step1").child("rank").make()
    dump.child("step1").child("rank").remove()
    assert names(dump.path) == ["step0"]
    dump.child("step0").child("rank1").unlink("a")
    dump.child("step0").child("rank1").remove()
    assert names(dump.path) == []


def test_what_is_not_there_is_nothing(dump: Folder) -> None:
    assert dump.names() == [] and not dump.exists("a") and not dump.is_file("a") and not dump.is_folder("a")
    dump.unlink("a")
    assert not dump.remove_folder("a") and not dump.path.exists()


def test_descriptors_are_given_back(dump: Folder, way: str) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not show what is open")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        write(dump.child("step0").child(f"rank{number}"), "a")
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= (2 if way == "by descriptor" else 0)
