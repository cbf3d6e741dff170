"""Programs of which one reads its data and the other prepares it within the step, in parts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Verdict

WIDTH = 24


def draw_waves() -> list[np.ndarray]:  # type: ignore[type-arg]
    drawn = np.random.RandomState(0)
    return [(drawn.standard_normal(WIDTH - 2 * row) + 0.1).astype(np.float32) for row in range(4)]


def read_batch() -> Tensor:
    """Each row normalised on its own, and padded with zeros."""
    rows = np.zeros((4, WIDTH), np.float32)
    for row, wave in zip(rows, draw_waves(), strict=True):
        row[: len(wave)] = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    return torch.from_numpy(rows)


def prepare(waves: list[np.ndarray]) -> Tensor:  # type: ignore[type-arg]
    audio = torch.stack([F.pad(torch.from_numpy(wave), (0, WIDTH - len(wave))) for wave in waves])
    counts = torch.tensor([[float(len(wave))] for wave in waves])
    inside = (torch.arange(WIDTH)[None] < counts).float()
    centred = (audio - (audio * inside).sum(1, keepdim=True) / counts) * inside
    return centred * torch.rsqrt(centred.square().sum(1, keepdim=True) / counts + 1e-7)


class Scorer(nn.Module):
    """The bias of its keys has no gradient but rounding."""

    def __init__(self, fault: str = "", *, is_fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.query, self.key = nn.Linear(WIDTH, 36), nn.Linear(6, 6), nn.Linear(6, 6)
        self.out, self.fault, self.is_fused = nn.Linear(36, 1), fault, is_fused

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x), approximate="tanh" if self.fault == "gelu" else "none")
        seen = torch.zeros(len(x), 36)
        seen[torch.arange(len(x)), :30] = 1
        hidden = (hidden * seen).unflatten(-1, (6, 6))
        query, key = self.query(hidden), self.key(hidden)
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(query[:, None], key[:, None], hidden[:, None])[:, 0]
        else:
            mixed = (query @ key.transpose(-1, -2) / 6**0.5).softmax(-1) @ hidden
        scores = self.out(mixed.flatten(1))
        return (scores.exp() if self.fault == "exp" else scores.square()).sum()  # type: ignore[no-any-return]


def train_on_a_batch(path: Path) -> Path:
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6, foreach=False)
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        (model(read_batch()) / 4).backward()
        optimizer.step()
        sum(one.grad.double().norm() for one in model.parameters() if one.grad is not None)
    return path


def train_on_halves(path: Path, fault: str = "") -> Path:
    model = Scorer(fault, is_fused=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6, fused=True)
    waves = draw_waves()
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        for part in (waves[:2], waves[2:]):
            (model(prepare(part)) / 4).backward()
        optimizer.step()
    return path


def compare(tmp_path: Path, fault: str = "") -> Verdict:
    candidate = train_on_halves(tmp_path / "candidate", fault)
    return tensorprobe.compare(train_on_a_batch(tmp_path / "reference"), candidate, processes=1).verdict


def test_a_batch_that_one_run_reads_and_the_other_prepares_in_halves_is_the_same(tmp_path: Path) -> None:
    verdict = compare(tmp_path)
    assert verdict.kind == "agree", verdict
    assert re.search(r" to \d+e-1[4-9]", verdict.headline), verdict  # not only as far as numpy has rounded it


def test_what_one_run_prints_in_double_precision_is_no_loss_of_digits_in_the_other(tmp_path: Path) -> None:
    """Nor is the update of a parameter whose gradient is nothing but rounding."""
    verdict = compare(tmp_path)
    assert not any("precision" in line or "digits" in line for line in (verdict.headline, *verdict.evidence)), verdict


@pytest.mark.parametrize("fault", ["gelu", "exp"])
def test_a_mistake_beside_data_that_is_prepared_otherwise_is_named(tmp_path: Path, fault: str) -> None:
    """And not what is as large as half a batch, where the reference has it for the whole one."""
    verdict = compare(tmp_path, fault)
    assert verdict.call is not None and fault in verdict.call.candidate[-1].name, verdict


def train_with_room(path: Path, parts: int, filling: float = 2.0) -> Path:
    """A part of new memory is written to, and all of it is used. Nobody uses what else is full of a number."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 4), nn.Linear(8, 1)
    rows = torch.randn(4, 6)
    with tensorprobe.capture(nn.ModuleList([first, second]), str(path), level="L1", task="tensor"):
        for part in rows.chunk(parts):
            room = part.new_empty(len(part), 8)
            room[:, :4] = first(part)
            room[:, 4:].copy_(part[:, :4])
            torch.full((3,), filling)
            (second(room).square().mean() / parts).backward()
    return path


def test_an_unused_result_of_half_a_batch_that_is_full_of_another_number_differs(tmp_path: Path) -> None:
    paths = train_with_room(tmp_path / "whole", 1), train_with_room(tmp_path / "halves", 2, filling=5.0)
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.call is not None and "full" in verdict.call.candidate[-1].name, verdict


def test_a_part_of_memory_that_is_written_to_for_half_a_batch_is_no_result_that_differs(tmp_path: Path) -> None:
    paths = (train_with_room(tmp_path / str(parts), parts) for parts in (1, 2))
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.kind == "agree", verdict


def train_with_dropout(path: Path, seed: int, parts: int) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    rows = torch.randn(4, 6)
    torch.manual_seed(seed)
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        for part in rows.chunk(parts):
            (model(part).square().mean() / parts).backward()
    return path


@pytest.mark.parametrize("parts", [1, 2])
def test_of_a_dropout_with_another_seed_it_is_said_that_it_drew_other_numbers(tmp_path: Path, parts: int) -> None:
    paths = train_with_dropout(tmp_path / "r", 1, 1), train_with_dropout(tmp_path / "c", 2, parts)
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.kind == "random" and "seed_all" in verdict.headline, verdict
    assert verdict.call is not None and verdict.call.candidate[-1].op == "dropout", verdict
