"""Where the pieces of a run lie, and what they are called on the way there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.store import layout


def test_outside_distributed_runs_the_folder_has_no_number() -> None:
    assert layout.rank_name(None) == "rank" and layout.rank_name(12) == "rank12"


@pytest.mark.parametrize("name", ["dump.json", "x" * 243, "长" * 80 + ".pt", "a b+ü.npy"])
def test_a_temporary_name_is_hidden_and_fits_into_every_file_system(name: str, tmp_path: Path) -> None:
    temporary = layout.temporary_path(tmp_path / name)
    assert temporary.parent == tmp_path and temporary.name.startswith(".") and temporary.suffix == ".tmp"
    assert len(temporary.name.encode()) <= 255
    temporary.write_text("")


def test_long_names_that_begin_alike_have_different_temporary_names(tmp_path: Path) -> None:
    first, second = (layout.temporary_path(tmp_path / ("x" * 242 + end)) for end in "ab")
    assert first != second


def test_folders_are_made_with_their_parents_for_their_owner_only(tmp_path: Path) -> None:
    layout.make_folder(tmp_path / "a" / "b")
    layout.make_folder(tmp_path / "a" / "b")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")} == {0o700}


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        layout.make_folder(tmp_path / "file" / "rank")
