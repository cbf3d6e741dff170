"""The process that sends finished steps: what it is asked, and what it answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.store import upload_worker
from tensorprobe.store.upload import Target
from tensorprobe.store.upload_worker import serve, write_line

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store() -> Any:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    return memory


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(upload_worker, "_PAUSES_SECONDS", (0.0, 0.0))
    for step in range(2):
        folder = tmp_path / "run" / f"step{step}" / "rank"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_text(f"records {step}")
        (folder / "run.json").write_text(f"run {step}")
    return tmp_path / "run"


def ask(root: Path, *places: str, url: str = "memory://there") -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    serve((json.dumps([place]) for place in places), answers.append, root, url)
    return answers


def test_each_step_is_sent_and_removed_here(store: Any, root: Path) -> None:
    assert ask(root, "step0/rank", "step1/rank") == [
        {"ready": True},
        {"places": ["step0/rank"], "error": None},
        {"places": ["step1/rank"], "error": None},
    ]
    assert store.cat("/there/step1/rank/dump.json") == b"records 1"
    assert not (root / "step0" / "rank" / "dump.json").exists()


def test_an_address_that_cannot_be_written_is_refused_at_once(root: Path) -> None:
    (answer,) = ask(root, "step0/rank", url="nowhere://there")
    assert "fsspec knows no store 'nowhere'" in answer["refused"]
    assert (root / "step0" / "rank" / "dump.json").exists()


def test_what_fails_is_tried_again_and_once_more_at_the_end(
    store: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, attempts = Target.send, []

    def fail_at_first(target: Target, folder: Path, places: list[str], **more: Any) -> Any:
        attempts.append(places[0])
        if attempts.count("step0/rank") < 4 and places == ["step0/rank"]:
            raise ConnectionError("nobody answers")
        return send(target, folder, places, **more)

    monkeypatch.setattr(Target, "send", fail_at_first)
    answers = ask(root, "step0/rank", "step1/rank")
    assert attempts == ["step0/rank"] * 3 + ["step1/rank", "step0/rank"]
    assert answers[1] == {"places": ["step0/rank"], "error": "nobody answers"}
    assert answers[-1] == {"places": ["step0/rank"], "error": None, "is_last": True}
    assert store.cat("/there/step0/rank/dump.json") == b"records 0"


def test_what_never_arrives_stays_here(store: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(Target, "send", fail)
    assert ask(root, "step0/rank")[-1] == {"places": ["step0/rank"], "error": "ConnectionError", "is_last": True}
    assert (root / "step0" / "rank" / "dump.json").read_text() == "records 0"


def test_nobody_who_reads_the_answers_stops_nothing() -> None:
    file = io.StringIO()
    write_line(file, {"ready": True})
    assert file.getvalue() == '{"ready": true}\n'
    file.close()
    write_line(file, {"ready": True})
