"""Files of one entry a line: what is whole is read, wherever the rest was cut or spoilt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.store import journal

HEADER = b'{"task": "statistics", "data": {\n'


def write(folder: Path, *lines: bytes) -> Path:
    (folder / "dump.json").write_bytes(b"".join(lines))
    return folder / "dump.json"


def test_a_line_is_exactly_one_entry(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, b'"a": {},\n', b'"b": {}, "c": {},\n', b"\n", b'"d": [],\n', b'"e": {}\n', b"}}\n")
    found = journal.outline_part(path, dict)
    assert list(found.offsets) == ["a", "e"]
    assert found.bad_lines == (3, 5), "counted as an editor counts them"
    assert (found.header, found.is_closed, found.is_cut) == ({"task": "statistics"}, True, False)
    assert dict(journal.iter_entries(path, found, dict)) == {"a": {}, "e": {}}


@pytest.mark.parametrize(
    ("last", "is_closed", "is_cut"),
    [
        (b'"b": {}\n}}\n', True, False),
        (b'"b": {}\n}}', True, False),
        (b"}}\n", True, False),
        (b"}}\n\n", True, False),
        (b'}}\n"b": {}\n', False, False),
        (b'"b": {"x": ', False, True),
        (b"", False, False),
    ],
)
def test_what_follows_the_end_reopens_the_file_and_half_a_line_is_a_cut(
    tmp_path: Path, last: bytes, is_closed: bool, is_cut: bool
) -> None:
    found = journal.outline_part(write(tmp_path, HEADER, b'"a": {},\n', last), dict)
    assert (found.is_closed, found.is_cut, found.bad_lines) == (is_closed, is_cut, ())


def test_a_complete_file_is_outlined_only_if_it_is_closed_and_has_one_entry_a_line(tmp_path: Path) -> None:
    entries = (b'"a": {},\n', b'"b": {"x": 1}\n')
    found = journal.outline_whole(write(tmp_path, HEADER, *entries, b"}}\n"))
    assert found is not None and list(found.offsets) == ["a", "b"]
    for spoilt in (
        (HEADER, *entries),
        (HEADER, *entries, b"}}\n", b'"c": {}\n'),
        (HEADER, b'"a": {\n', b'"x": 1},\n', b"}}\n"),
        (b'{"task": "statistics", "data": {}}\n',),
        (b'["data", {\n', b"}}\n"),
    ):
        assert journal.outline_whole(write(tmp_path, *spoilt)) is None, spoilt


def test_an_entry_is_found_by_its_key_at_its_last_place(tmp_path: Path) -> None:
    lines = (b'"a": {"n": 1},\n', b'"b\\"": {"n": 2},\n', b'"a": {"n": 3}\n')
    path = write(tmp_path, HEADER, *lines, b"}}\n")
    for found in (journal.outline_whole(path), journal.outline_part(path, dict)):
        assert found is not None and list(found.offsets) == ['b"', "a"]
        assert journal.read_entry(path, found, "a", dict) == {"n": 3}


def test_an_entry_of_a_complete_file_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, b'"a": {"n": },\n', b'"b": []\n', b"}}\n")
    found = journal.outline_whole(path)
    assert found is not None
    with pytest.raises(DumpError, match=r"the entry 'a' cannot be read .* rename the file to dump\.json\.part"):
        journal.read_entry(path, found, "a", dict)
    with pytest.raises(DumpError, match=r"the entry 'b' cannot be read \(the value is list\)"):
        journal.read_entry(path, found, "b", dict)


def test_a_file_that_is_not_there_says_when_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"gone\.json cannot be opened .* try again when it has ended"):
        journal.outline_part(tmp_path / "gone.json", dict)


@pytest.mark.parametrize("text", ['"]"', '"}]"', '"", "]"', '"a[", "]b"', '"\\\\"', '"\\""'])
def test_brackets_inside_texts_hide_no_nesting(text: str) -> None:
    """A file is seen to be flat by its brackets alone: one inside a text takes none outside with it."""
    deep = f"[{text}, " * 600 + "0" + "]" * 600
    with pytest.raises(DumpError, match="nested too deeply"):
        journal.parse_json(deep.encode(), Path("dump.json"))


def test_a_long_file_with_brackets_in_its_texts_is_read() -> None:
    content = {f"x[{number}]": [{"a": "]", "b": ["{"]}] for number in range(600)}
    assert journal.parse_json(json.dumps(content).encode(), Path("dump.json")) == content
