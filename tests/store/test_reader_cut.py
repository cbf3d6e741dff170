"""A dump may be cut at any byte: every record that is whole before the cut is read, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.store.reader import open_dump
from tests.report.dump_files import HEADER, forward, tensor

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.floats(allow_nan=True, allow_infinity=True)
leaves = st.one_of(
    st.none(),
    st.builds(tensor, numbers),
    st.builds(lambda value: {"type": "int", "value": value}, st.integers()),
    st.builds(lambda value: {"type": "str", "value": value}, names),
)
trees = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3))
)
records = st.dictionaries(names, st.builds(lambda inputs: forward(*inputs), st.lists(trees, max_size=3)), max_size=5)


def part_of(entries: dict[str, Any], *, is_ascii: bool) -> tuple[bytes, list[int]]:
    """The bytes of a part, and where each record ends."""
    data, ends = HEADER.encode(), []
    for index, (key, value) in enumerate(entries.items()):
        line = f"{json.dumps(key, ensure_ascii=is_ascii)}: {json.dumps(value, ensure_ascii=is_ascii)}"
        data += (b",\n" if index else b"\n") + line.encode()
        ends.append(len(data))
    return data, ends


@given(records, st.booleans(), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_whole_record_before_the_cut_is_read(
    tmp_path: Path, entries: dict[str, Any], is_ascii: bool, data: st.DataObject
) -> None:
    content, ends = part_of(entries, is_ascii=is_ascii)
    cut = data.draw(st.integers(0, len(content)))
    (tmp_path / "dump.json.part").write_bytes(content[:cut])
    rank = next(open_dump(tmp_path).ranks())
    whole = list(entries)[: sum(end <= cut for end in ends)]
    assert [record.name for record in rank.records()] == whole
    assert [repr(record.fields) for record in rank.records()] == [repr(entries[name]) for name in whole]
    assert not rank.is_complete


@pytest.mark.parametrize("name", ["construct.json.part", "stack.json.part", "debug.json.part"])
def test_side_files_may_be_cut_at_any_byte(tmp_path: Path, name: str) -> None:
    contents = {
        "construct.json.part": '{\n"é.0.forward": "Module.Net.forward.0",\n"b.0.forward": null',
        "stack.json.part": '["stack", 0, ["File é.py, line 1, in f, \\n x"]]\n["call", 0, "é.0.forward"]\n',
        "debug.json.part": HEADER + '\n"é.0.debug": ' + json.dumps(tensor()) + ',\n"y.0.debug": null',
    }
    content = contents[name].encode()
    (tmp_path / "dump.json.part").write_text(HEADER)
    for cut in range(len(content) + 1):
        (tmp_path / name).write_bytes(content[:cut])
        rank = next(open_dump(tmp_path).ranks())
        assert set(rank.parents) <= {"é.0.forward", "b.0.forward"}
        assert {value.name for value in rank.saved_values()} <= {"é.0.debug", "y.0.debug"}
        assert not [problem for problem in rank.problems if "lines cannot be read" in problem]
