"""What our writer writes, our reader reads: while it is written, after a kill, complete, and extended afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store.folder import Folder
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.recover import recover_dump
from tensorprobe.store.writer import RankWriter
from tests.report.dump_files import forward, tensor

HEADER = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}


def only_rank(folder: Path) -> RankDump:
    return next(open_dump(folder).ranks())


@pytest.fixture
def writer(tmp_path: Path) -> RankWriter:
    return RankWriter(Folder(tmp_path / "step0" / "rank"), HEADER, has_construct=True, has_extra=True)


def append(writer: RankWriter, name: str) -> dict[str, Any]:
    fields = forward(tensor(float("nan"), nan_count=3), output=tensor(float("-inf"), inf_count=1))
    writer.append_records([(name, fields)])
    writer.append_parents([(name, "Module.Nét.forward.0")])
    writer.add_stack(name, 4, ["File /x/é.py, line 1, in f, \n y"])
    writer.flush_stacks()
    return fields


def check(folder: Path, records: dict[str, Any]) -> RankDump:
    rank = only_rank(folder)
    assert {record.name: repr(record.fields) for record in rank.records()} == {k: repr(v) for k, v in records.items()}
    assert dict(rank.parents) == dict.fromkeys(records, "Module.Nét.forward.0")
    assert {rank.stack(name) for name in records} == {("File /x/é.py, line 1, in f, \n y",)}
    assert (dict(rank.header), rank.problems) == (HEADER, ())
    return rank


def test_at_every_moment_the_dump_is_readable(writer: RankWriter) -> None:
    records = {name: append(writer, name) for name in ("Torch.é.0.forward", "Torch.add.0.forward")}
    assert not check(writer.folder.path, records).is_complete
    writer.close({"complete": False}, is_finished=False)
    check(writer.folder.path, records)
    records["Torch.add.0.backward"] = append(writer, "Torch.add.0.backward")
    assert not check(writer.folder.path, records).is_complete
    writer.close({"complete": True}, is_finished=True)
    assert check(writer.folder.path, records).is_complete
    assert recover_dump(writer.folder.path) == []


def test_after_a_kill_it_is_recovered(writer: RankWriter) -> None:
    records = {name: append(writer, name) for name in ("Torch.é.0.forward", "Torch.add.0.forward")}
    writer.append_debug([("x.0.debug", {"a": [tensor(), None]})])
    writer.abandon()
    assert recover_dump(writer.folder.path)
    rank = check(writer.folder.path, records)
    assert [value.name for value in rank.saved_values()] == ["x.0.debug"]
    assert not list(writer.folder.path.glob("*.part"))


def test_a_window_in_which_nothing_happened(writer: RankWriter) -> None:
    writer.append_records([])
    writer.append_parents([])
    assert only_rank(writer.folder.path).record_count == 0
    writer.close({"complete": True}, is_finished=True)
    rank = only_rank(writer.folder.path)
    assert (rank.record_count, rank.is_complete, rank.problems) == (0, True, ())
