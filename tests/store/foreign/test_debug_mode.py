"""Logs that torch's own DebugMode wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe.store.reader import open_dump

DebugMode = pytest.importorskip("torch.utils._debug_mode").DebugMode


def write_log(path: Path, scale: float = 1.0, **options: bool) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    given = torch.randn(5, 4)
    with DebugMode(record_ids=True, **options) as mode, DebugMode.log_tensor_hashes(hash_inputs=True):
        (model(given).mul(scale)).sum().backward()
    path.write_text(mode.debug_string())
    return path


def test_two_logs_are_compared_by_their_hashes(tmp_path: Path) -> None:
    good, same = write_log(tmp_path / "good.txt"), write_log(tmp_path / "same.txt")
    result = tensorprobe.compare(good, same)
    assert result
    assert result.ranks[0].bases["checksum"] > 20
    wrong = tensorprobe.compare(good, write_log(tmp_path / "bad.txt", 1.5))
    assert not wrong
    assert wrong.verdict.call is not None
    assert wrong.verdict.call.name == "Torch.mul.0.forward"


def test_functions_are_records_and_what_they_contain_is_not(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.txt", record_torchfunction=True)
    (rank,) = open_dump(path).ranks()
    names = [record.name for record in rank.records()]
    assert names[:5] == [
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Functional.linear.1.forward",
        "Tensor.mul.0.forward",
        "Tensor.sum.0.forward",
    ]
    assert names[5].startswith("Torch.")  # the backward pass
    relu = rank.record("Functional.relu.0.forward")
    assert relu.fields["input_args"][0]["source"] == "Functional.linear.0.forward"


def test_another_text_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("what I had for lunch\n")
    with pytest.raises(tensorprobe.errors.DumpError, match="is not a dump"):
        tensorprobe.compare(tmp_path / "notes.txt", tmp_path / "notes.txt")
