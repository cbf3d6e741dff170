"""What holds in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorprobe.capture.recorder import Recorder


@pytest.fixture(autouse=True)
def stale_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A value that verify mode (lane `verify`) found changed fails the test, unless the test itself clears the list."""
    noted: list[str] = []
    original = Recorder.note_stale

    def note_stale(recorder: Recorder, slot: str, difference: str) -> None:
        noted.append(f"{slot}: {difference}")
        original(recorder, slot, difference)

    monkeypatch.setattr(Recorder, "note_stale", note_stale)
    yield noted
    assert not noted, "values were taken as known and had changed"
