"""What the replays of one dump know of its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.compare.truth.replaying import Replaying
from tensorprobe.replay import recorded
from tensorprobe.replay.kept_tensor import KeptTensors
from tensorprobe.store.reader import open_dump

CPU = torch.device("cpu")


def test_a_second_replay_reads_no_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    with tensorprobe.capture(model, tmp_path, level="L1", task="tensor"):
        model(torch.randn(3, 4)).mean().backward()
    opened = []
    monkeypatch.setattr(
        recorded, "open_tensor", lambda path, *rest, was=recorded.open_tensor: opened.append(path) or was(path, *rest)
    )
    replaying = Replaying(open_dump(tmp_path).steps[0].ranks[0])
    first = replaying.replay({})
    count = len(opened)
    second = replaying.replay({})
    assert count and len(opened) == count
    assert first.roots[0].array == second.roots[0].array


def test_of_files_with_the_same_bytes_one_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer gives is what the next one takes, and each record has a file of its own."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    with tensorprobe.capture(model, tmp_path, level="L1", task="tensor"):
        model(torch.randn(3, 4)).mean().backward()
    opened = []
    monkeypatch.setattr(
        recorded, "open_tensor", lambda path, *rest, was=recorded.open_tensor: opened.append(path) or was(path, *rest)
    )
    rank = open_dump(tmp_path).steps[0].ranks[0]
    Replaying(rank).replay({})
    contents = [path.read_bytes() for path in opened]
    assert len(contents) == len(set(contents))


def test_what_is_kept_of_one_device_is_not_that_of_another() -> None:
    kept = KeptTensors()
    kept.add((1, 2), CPU, torch.ones(3))
    assert kept.find((1, 2), CPU) is not None
    assert kept.find((1, 2), torch.device("meta")) is None


def test_the_files_that_were_read_first_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorprobe.replay.kept_tensor._MAX_KEPT_BYTES", 40)
    kept = KeptTensors()
    for number in range(3):
        kept.add((0, number), CPU, torch.zeros(4))
    assert [kept.find((0, number), CPU) is not None for number in range(3)] == [False, True, True]
