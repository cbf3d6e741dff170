"""A dump of api_dump, in which a layer is one call: it can be replayed like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe import migrator
from tensorprobe.store.reader import open_dump
from tests.cli.command import run_here
from tests.replay.program import count_gradients, run_replay


class Net(nn.Module):
    """Layers that write in place, draw, keep statistics and have states, and calls between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.dropout, self.lstm = nn.Dropout(0.3), nn.LSTM(16, 5, batch_first=True)
        self.words, self.last = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> Any:
        x = self.dropout(self.relu(self.norm(self.first(x))))
        x, _ = self.lstm(x.flatten(2))
        return self.last(x.mean(1) + self.words(tokens))


def record(folder: Path, *, is_filtered: bool = False) -> Path:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 3, 6, 6)
    migrator.api_dump_init(net, folder, retain_backward=True)
    migrator.api_dump_start(filter_data=is_filtered)
    nn.CrossEntropyLoss()(net(x, torch.arange(4)), torch.tensor([0, 1, 2, 1])).backward()
    migrator.api_dump_stop()
    return folder


def test_its_replay_gives_every_bit_again(tmp_path: Path) -> None:
    replay, differences = run_replay(record(tmp_path), "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})
    assert differences.gradient_count == count_gradients(tmp_path)
    assert differences.leaf_count == len(list(Net().parameters()))


def test_nothing_is_wrong_with_a_right_one(tmp_path: Path) -> None:
    (run,) = tensorprobe.truth(record(tmp_path)).runs
    assert run.findings == [] and run.unchecked == {}
    assert [record for record, *_ in run.losses] == ["NN_CrossEntropyLoss_0_forward"]
    assert len(run.parameter_gradients) == len(list(Net().parameters()))


def test_a_layer_that_errs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = nn.Linear.forward

    def err(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        result = right(layer, x)
        with torch.no_grad():
            result.numpy()[1, 2] *= 1.001
        return result

    monkeypatch.setattr(nn.Linear, "forward", err)
    findings = tensorprobe.truth(record(tmp_path)).findings
    assert ("kernel", "NN_Linear_0_forward") in [(finding.kind, finding.record) for finding in findings]


def test_a_hook_on_what_a_layer_gives_is_named_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = nn.Embedding.forward

    def hook(layer: nn.Embedding, x: torch.Tensor) -> torch.Tensor:
        result = right(layer, x)
        result.register_hook(lambda gradient: 2 * gradient)
        return result

    monkeypatch.setattr(nn.Embedding, "forward", hook)
    (run,) = tensorprobe.truth(record(tmp_path)).runs
    assert [(finding.kind, finding.record) for finding in run.findings] == [("sum", "NN_Embedding_0_backward")]
    (words,) = [row for row in run.parameter_gradients if row.slot == "words.weight"]
    assert words.accumulated is not None and words.accumulated.relative < 1e-5


def test_its_replay_is_a_dump_that_compares_as_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump, again = record(tmp_path / "dump"), tmp_path / "again"
    done = run_here(capsys, "replay", dump, "--dtype", "recorded", "-o", again)
    assert done.returncode == 0 and "values come out as recorded, bit for bit." in done.stdout
    assert run_here(capsys, "compare", dump, again).returncode == 0
    (rank,) = open_dump(again).ranks()
    assert np.load(rank.tensor_path("NN_Linear_0_forward_output.npy")).shape == (4, 3)


def test_one_without_integers_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(
        tensorprobe.DumpError, match=r"has no file for output\.0 of Torch_arange_0_forward: .*filter_data=False"
    ):
        tensorprobe.truth(record(tmp_path, is_filtered=True))
