"""Few steps wait for the network; and where there is none, nobody waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.capture import uploader
from tensorprobe.capture.uploader import MAX_WAITING, Uploader, start_uploader
from tensorprobe.store.upload import Target

pytest.importorskip("fsspec")


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is sent before it is set."""
    monkeypatch.setenv("TENSORPROBE_CACHE", str(tmp_path / "cache"))
    opened = threading.Event()
    monkeypatch.setattr(Target, "send", lambda *_, **__: opened.wait())
    return opened


def put(sender: Uploader, number: int) -> None:
    sender.put(sender.folder / f"step{number}" / "rank")


def test_a_path_of_this_machine_needs_none(tmp_path: Path) -> None:
    assert start_uploader(tmp_path) is None


def test_few_steps_wait_and_then_the_program_does(gate: threading.Event) -> None:
    sender = Uploader("memory://slow")
    for number in range(MAX_WAITING):
        put(sender, number)
    late = threading.Thread(target=put, args=(sender, MAX_WAITING))
    late.start()
    late.join(0.3)
    assert late.is_alive()
    gate.set()
    late.join()
    sender.close(None)


def test_nobody_waits_for_a_store_that_is_lost(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: Any, **options: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(Target, "send", fail)
    monkeypatch.setattr(uploader.upload_worker, "_PAUSES_SECONDS", ())
    sender = Uploader("memory://lost")
    began = time.monotonic()
    for number in range(3 * MAX_WAITING):
        put(sender, number)
    sender.close(None)
    assert time.monotonic() - began < 30
    assert "12 steps could not be sent to memory://lost (no route to host)" in caplog.text
    assert f"Send it with: tensorprobe upload {sender.folder} memory://lost" in caplog.text
