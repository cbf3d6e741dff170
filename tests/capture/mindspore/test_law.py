"""Law 1: with capture on, loss, gradients, updated weights and random streams are bit for bit those without it."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from tests.capture.mindspore.dump import only_step
from tests.capture.mindspore.models import MODELS
from tests.capture.mindspore.training import Observed, difference, open_session, recorded_step, train

LEVELS = ["L0", "L1", "mix"]
WAYS = [
    *((level, {"task": task}) for level in LEVELS for task in ("statistics", "tensor")),
    ("mix", {"task": "structure"}),
    ("mix", {"task": "statistics", "summary_mode": "md5"}),
]


@cache
def plain(model: str) -> Observed:
    return train(model)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("level", "way"), WAYS, ids=lambda part: part if isinstance(part, str) else "-".join(part.values())
)
@pytest.mark.some(2)  # each level with each model, and each way
def test_training_is_bit_identical_while_it_is_recorded(
    model: str, level: str, way: dict[str, str], tmp_path: Path
) -> None:
    session = open_session(tmp_path, level=level, **way)
    captured = train(model, partial(recorded_step, session))
    assert difference(plain(model), captured) == []
    assert session.recorder.coverage.failed == 0
    assert only_step(tmp_path, 2).coverage["failed"] == 0
    assert only_step(tmp_path, 2).records
    session.close()


def test_the_comparison_itself_notices_a_changed_bit() -> None:
    first, second = train("cnn"), train("cnn")
    assert difference(first, second) == []
    second["loss 1"] = second["loss 1"] * (1 + 1e-7) + 1e-7
    assert difference(first, second) == ["loss 1"]
