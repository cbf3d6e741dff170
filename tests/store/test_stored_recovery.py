"""`recover` for a dump in a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import mirror
from tensorprobe.store.reader import open_dump
from tensorprobe.store.stored_recovery import recover_stored

fsspec = pytest.importorskip("fsspec")
_LEAF = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1]}
_RECORD = {"input_args": [], "input_kwargs": {}, "output": [{**_LEAF, "data_name": "Torch.relu.0.forward.output.0.pt"}]}


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that was killed while it wrote its second record."""
    monkeypatch.setenv("TENSORPROBE_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    mirror._mirrors.clear()
    head = json.dumps({"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None})[:-1]
    text = f'{head}, "data": {{\n"Torch.relu.0.forward": {json.dumps(_RECORD)},\n"Torch.relu.1.forw'
    memory.pipe("/run/step0/rank/dump.json.part", text.encode())
    memory.pipe("/run/step0/rank/dump_tensor_data/Torch.relu.0.forward.output.0.pt", b"content")
    return memory


def test_the_records_are_recovered_in_the_store_and_tensors_are_not_copied(killed: Any, tmp_path: Path) -> None:
    seen = []
    (found,) = recover_stored("memory://run", on_folder=lambda rank: seen.append(rank.name))
    assert found.actions
    assert seen == ["step0/rank"]
    assert killed.exists("/run/step0/rank/dump.json")
    assert not killed.exists("/run/step0/rank/dump.json.part")
    assert killed.cat("/run/step0/rank/dump_tensor_data/Torch.relu.0.forward.output.0.pt") == b"content"
    assert not list((tmp_path / "cache").rglob("*.pt"))
    (rank,) = open_dump("memory://run").ranks()
    assert [record.name for record in rank.records()] == ["Torch.relu.0.forward"]


def test_a_run_that_is_whole_is_left_as_it_is(killed: Any) -> None:
    recover_stored("memory://run")
    before = dict(killed.store)
    assert recover_stored("memory://run") == []
    assert dict(killed.store) == before
