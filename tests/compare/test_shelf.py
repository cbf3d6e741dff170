"""Of a large comparison, the calls of most steps and ranks lie in a file, and everything can be asked of it all the
same."""

from __future__ import annotations

import tracemalloc
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare import shelf
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.shelf import ShelvedCalls
from tensorprobe.report.compare_summary import summarize
from tests.compare.recording import Recording

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def write_run(folder: Path, wrong: float = 0.0, ranks: int = 3, calls: int = 3) -> Path:
    for rank in range(ranks):
        run = Recording("statistics")
        value = run.data(X)
        for number in range(calls):
            added = np.float32(wrong) if (number, rank) == (1, 1) else np.float32(0)
            value = run.api("Functional.relu", value, output=np.maximum(value.array, 0) + added)
        run.write(folder, rank=f"rank{rank}")
    return folder


def compare_on_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, wrong: float = 0.5) -> Comparison:
    monkeypatch.setattr(shelf.Shelf.__init__, "__defaults__", (room,))
    return tensorprobe.compare(write_run(tmp_path / "r"), write_run(tmp_path / "c", wrong))


def test_what_lies_in_the_file_is_what_would_be_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare_on_shelf(tmp_path / "whole", monkeypatch, 1000)
    found = compare_on_shelf(tmp_path / "shelved", monkeypatch, 7)
    assert [isinstance(rank.calls, ShelvedCalls) for rank in whole] == [False, False, False]
    assert [isinstance(rank.calls, ShelvedCalls) for rank in found] == [False, True, True]
    assert found.verdict.headline == whole.verdict.headline
    assert found.rows == whole.rows
    assert str(found).splitlines()[1:] == str(whole).splitlines()[1:]
    one, other = summarize(found), summarize(whole)
    assert (one.tensors, one.calls, one.bases, one.coverage) == (
        other.tensors,
        other.calls,
        other.bases,
        other.coverage,
    )
    assert one.tensors == {"equal": 15, "different": 3}


def test_calls_in_the_file_can_be_asked_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compare_on_shelf(tmp_path, monkeypatch, 0).ranks[1].calls
    assert len(calls) == 3
    assert calls[1].name == calls[-2].name == "Functional.relu.1.forward"
    assert [call.name for call in calls[1:]] == [call.name for call in list(calls)[1:]]
    assert asdict(calls[0].values[0])["status"] == "equal"


def test_memory_does_not_grow_with_the_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf.Shelf.__init__, "__defaults__", (0,))

    def measure(ranks: int) -> int:
        folder = tmp_path / str(ranks)
        paths = [write_run(folder / side, ranks=ranks, calls=60) for side in "rc"]
        tracemalloc.start()
        result = tensorprobe.compare(*paths)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result, str(result)
        return peak

    measure(1)
    assert measure(12) < 1.5 * measure(3)
