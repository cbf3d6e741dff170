"""Law 1: with capture on, loss, gradients, updated weights and random streams are bit for bit those without it."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from tensorprobe.capture.torch.verification import is_wanted
from tests.capture.torch.models import MODELS
from tests.capture.torch.training import Observed, difference, open_session, recorded_step, train

WAYS = [
    {"task": "statistics"},
    {"task": "tensor"},
    {"task": "structure"},
    {"task": "statistics", "summary_mode": "md5"},
    {"task": "statistics", "summary_mode": "hash"},
]
if is_wanted():  # verify mode compares all bits of every value anyhow, and here those of the files too
    WAYS = [way for way in WAYS if way["task"] == "tensor"]


@cache
def plain(model: str) -> Observed:
    return train(model)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.some(4)  # each level with each model and with each way
def test_training_is_bit_identical_while_it_is_recorded(
    model: str, level: str, way: dict[str, str], tmp_path: Path
) -> None:
    session = open_session(tmp_path, level=level, **way)
    captured = train(model, partial(recorded_step, session))
    assert difference(plain(model), captured) == []
    assert session.recorder.coverage.failed == 0
    assert (tmp_path / "step2" / "rank" / "dump.json").exists()
    session.close()


def test_the_comparison_itself_notices_a_changed_bit() -> None:
    first, second = train("lstm"), train("lstm")
    assert difference(first, second) == []
    second["loss 1"] = second["loss 1"] * (1 + 1e-7) + 1e-9
    assert difference(first, second) == ["loss 1"]
