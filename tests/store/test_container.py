"""Files that hold many tensors by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.store.container import member_name, member_path, open_member, read_members

torch = pytest.importorskip("torch")


def test_tensors_are_found_by_their_names_and_those_of_a_list_by_number(tmp_path: Path) -> None:
    torch.save({"a/b": torch.arange(3), "pair": [torch.zeros(2), "no tensor"], "n": 3}, tmp_path / "x.pt")
    found = read_members(tmp_path / "x.pt")
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
        "a/b": ("int64", (3,)),
        "pair[0]": ("float32", (2,)),
    }
    path = member_path(tmp_path, member_name("x.pt", "a/b"))
    assert open_member(path).tolist() == [0, 1, 2]


def test_a_tensor_without_a_name_is_the_value_of_its_file(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "x.pt")
    assert list(read_members(tmp_path / "x.pt")) == ["value"]
    assert open_member(tmp_path / "x.pt" / "value").tolist() == [1, 1]


def test_a_file_that_was_written_anew_is_read_again(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "x.pt")
    read_members(tmp_path / "x.pt")
    torch.save({"b": torch.zeros(2), "c": torch.zeros(100)}, tmp_path / "x.pt")
    assert list(read_members(tmp_path / "x.pt")) == ["b", "c"]


@pytest.mark.parametrize("name", ["../x.pt/a", "x.pt/..", "x.pt", "x.pt/a/b", "/x"])
def test_a_name_that_leads_elsewhere_is_not_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(DumpError, match="it is not opened"):
        member_path(tmp_path, name)


def test_what_is_missing_or_damaged_is_said(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "x.pt")
    with pytest.raises(DumpError, match=r"b is missing in x\.pt"):
        open_member(tmp_path / "x.pt" / "b")
    (tmp_path / "y.pt").write_bytes(b"no archive")
    with pytest.raises(DumpError, match=r"y\.pt "):
        read_members(tmp_path / "y.pt")
    with pytest.raises(DumpError, match="cannot be read"):
        read_members(tmp_path / "none.pt")
