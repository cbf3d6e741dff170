"""A dump is whole in its store before anything is removed here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import upload_worker
from tensorprobe.store.remote import StoreError
from tensorprobe.store.upload import Target, find_unsent

fsspec = pytest.importorskip("fsspec")
PLACES = ("step0", "rank")


@pytest.fixture
def store() -> Any:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    return memory


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path.joinpath(*PLACES)
    (folder / "dump_tensor_data").mkdir(parents=True)
    (folder / "dump.json").write_text('{"data": {\n"x": {}\n}}\n')
    (folder / "run.json").write_text("{}")
    (folder / "dump_tensor_data" / "x.npy").write_bytes(b"tensor")
    os.link(folder / "dump_tensor_data" / "x.npy", folder / "dump_tensor_data" / "y.npy")
    (folder / ".dump.json.tmp").write_text("half of a file")
    return tmp_path


def test_all_files_arrive_and_the_half_written_do_not(store: Any, dump: Path) -> None:
    sent = Target("memory://sent").send(dump, PLACES)
    assert (sent.files, len(store.find("/sent"))) == (4, 4)
    assert store.cat("/sent/step0/rank/dump_tensor_data/y.npy") == b"tensor"
    assert (dump / "step0" / "rank" / "dump.json").exists()


def test_what_arrived_is_removed_if_that_is_asked_for(store: Any, dump: Path) -> None:
    assert find_unsent(dump) == [PLACES]
    Target("memory://sent").send(dump, PLACES, removes=True)
    left = [path.name for path in (dump / "step0" / "rank").iterdir() if not path.name.startswith(".")]
    assert left == ["run.json"]


def test_a_file_that_did_not_arrive_whole_stays(store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = type(store).put_file

    def cut(self: Any, source: str, target: str, **options: Any) -> None:
        put(self, source, target, **options)
        if target.endswith("x.npy"):
            self.pipe_file(target, b"ten")

    monkeypatch.setattr(type(store), "put_file", cut)
    monkeypatch.setattr(type(store), "cp_file", lambda *_: (_ for _ in ()).throw(OSError("no copies here")))
    with pytest.raises(StoreError, match=r"x.npy did not arrive whole"):
        Target("memory://sent").send(dump, PLACES, removes=True)
    assert (dump / "step0" / "rank" / "dump_tensor_data" / "x.npy").exists()


def test_what_an_earlier_run_left_in_its_place_goes(store: Any, dump: Path) -> None:
    for name in ("debug.json", "dump_tensor_data/old.pt", "notes.txt"):
        store.pipe(f"/sent/step0/rank/{name}", b"old")
    Target("memory://sent").send(dump, PLACES)
    names = {path.removeprefix("/sent/step0/rank/") for path in store.find("/sent")}
    assert "notes.txt" in names  # not ours
    assert not {"debug.json", "dump_tensor_data/old.pt"} & names


def test_the_worker_answers_for_each_folder_and_tries_again_at_the_end(
    store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_worker, "_PAUSES_SECONDS", ())
    send, tries = Target.send, []

    def fail_first(self: Target, *given: Any, **options: Any) -> Any:
        tries.append(given)
        if len(tries) == 1:
            raise StoreError("the network is down")
        return send(self, *given, **options)

    monkeypatch.setattr(Target, "send", fail_first)
    answers: list[dict[str, Any]] = []
    upload_worker.serve([json.dumps(PLACES)], answers.append, dump, "memory://sent")
    assert answers == [
        {"ready": True},
        {"places": ["step0", "rank"], "error": "the network is down"},
        {"places": ["step0", "rank"], "error": None, "is_last": True},
    ]
