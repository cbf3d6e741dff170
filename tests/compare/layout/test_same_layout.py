"""Is rank 1 of one run the counterpart of rank 1 of the other?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.compare.layout.same_layout import find_other_layout
from tensorprobe.store.reader import open_dump
from tests.compare.layout.model import draw

Parts = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
X, W = draw(0, 4, 6), draw(1, 8, 6)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Parts], Path]:
    """Two ranks, one after the other: each with its part of the data and of the weight."""

    def record(name: str, parts: Parts) -> Path:
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in (0, 1):
            monkeypatch.setenv("RANK", str(rank))
            x, weight = parts(rank)
            model = nn.Linear(*reversed(weight.shape), bias=False)
            model.weight.data = weight.clone()
            with tensorprobe.capture(model, tmp_path / f"{name}{rank}", level="L1", task="replay") as recording:
                model(x.clone()).mean().backward()
                recording.step()
            place = tmp_path / name / "step0" / f"rank{rank}"
            place.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}{rank}" / "step0" / f"rank{rank}").rename(place)
        return tmp_path / name

    return record


def look(reference: Path, candidate: Path) -> str | None:
    first, second = (open_dump(path).steps[0].ranks for path in (reference, candidate))
    assert len(first) == len(second) == 2
    return find_other_layout(first, second)


def test_ranks_that_have_the_same_are_counterparts_also_with_a_stale_weight(
    record: Callable[[str, Parts], Path],
) -> None:
    first = record("first", lambda rank: (X, W.chunk(2)[rank]))
    second = record("second", lambda rank: (X, W.chunk(2)[rank] * (1 - 0.01 * rank)))
    assert look(first, first) is None
    assert look(first, second) is None


def test_a_rank_with_parts_of_another_size_or_of_another_rank_is_none(record: Callable[[str, Parts], Path]) -> None:
    tensor = record("tensor", lambda rank: (X, W.chunk(2)[rank]))
    turned = record("turned", lambda rank: (X, W.chunk(2)[1 - rank]))
    data = record("data", lambda rank: (X.chunk(2)[rank], W))
    data_turned = record("data_turned", lambda rank: (X.chunk(2)[1 - rank], W))
    context = record("context", lambda rank: (X[rank : rank + 1], W))
    assert look(tensor, data) == "rank 0 has parameters of other sizes than rank 0 of the reference"
    assert look(tensor, turned) == "rank 0 has parameters of rank 1 of the reference"
    assert look(data, data_turned) == "rank 0 has data of rank 1 of the reference"
    assert look(data, context) == "rank 0 has data of other sizes than rank 0 of the reference"
