"""A rank that is not what its peers are is named, and parts of weights are not taken for replicas."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.replay.program import read_program
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.replica import find_drifts
from tensorprobe.store.reader import open_dump
from tests.replay.program import record


def record_ranks(folder: Path, *models: nn.Module, seeds: tuple[int, ...] = (0, 0, 0)) -> list[tuple[int, str, str]]:
    """One process stands for each rank: rank, record, and what is said."""
    programs, recorded = {}, {}
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    for rank, model in enumerate(models):

        def step(model: nn.Module = model, seed: int = seeds[rank]) -> torch.Tensor:
            torch.manual_seed(seed)
            return F.dropout(model(x), 0.5).pow(2).mean()

        (dump,) = open_dump(record(folder / str(rank), model, step)).ranks()
        programs[rank] = read_program(dump)
        recorded[rank] = RecordedTensors(dump, torch.device("cpu"))
    return [(rank, one.record, one.other) for rank, one in find_drifts(programs, recorded)]


def make_layer(seed: int = 0, factor: float = 1.0) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(6, 5)
    layer.weight.data *= factor
    return layer


def test_ranks_that_are_alike_are_not_named(tmp_path: Path) -> None:
    assert record_ranks(tmp_path, make_layer(), make_layer()) == []


def test_the_rank_with_another_weight_than_the_others_is_named(tmp_path: Path) -> None:
    ((rank, name, words),) = record_ranks(tmp_path, make_layer(), make_layer(factor=0.9), make_layer())
    assert (rank, name) == (1, "Functional.linear.0.forward")
    assert words == "Rank 1 has something else than its peers (rank 0, 2): weight (relative difference 0.1)"


def test_parts_of_a_weight_on_two_ranks_are_no_replicas(tmp_path: Path) -> None:
    assert record_ranks(tmp_path, make_layer(0), make_layer(1)) == []


def test_parts_of_few_numbers_that_are_alike_by_chance_are_no_replicas(tmp_path: Path) -> None:
    layers = [make_layer(0) for _ in range(2)]
    layers[1].bias.data = layers[0].bias.data + 0.3 * layers[0].bias.data.abs().mean() * torch.tensor([1, -1, 1, -1, 1])
    correlation = torch.corrcoef(torch.stack([layer.bias.data for layer in layers]))[0, 1]
    assert 0.9 < correlation < 0.99
    assert record_ranks(tmp_path, *layers) == []


def test_the_rank_that_drew_another_mask_is_named(tmp_path: Path) -> None:
    ((rank, name, words),) = record_ranks(tmp_path, make_layer(), make_layer(), make_layer(), seeds=(0, 0, 7))
    assert (rank, name) == (2, "Functional.dropout.0.forward")
    assert "output.0 of Functional.dropout.0.forward, which is given the same on all of them" in words
