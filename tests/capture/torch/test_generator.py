"""What a record says about the random numbers that its call drew."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session, recorded_step


def _generators(path: Path, level: str = "L1", seed: int = 0) -> dict[str, str]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.ones(2, 4)
    with recorded_step(open_session(path, level=level), model):
        y = F.dropout(model(x), 0.5)
        torch.randn(3, generator=torch.Generator().manual_seed(7))
        F.relu(y)
    records = only_step(path).records
    return {name: fields["generator"] for name, fields in records.items() if "generator" in fields}


def test_random_calls_say_from_which_state_they_drew(tmp_path: Path) -> None:
    found = _generators(tmp_path / "a")
    assert list(found) == ["Functional.dropout.0.forward", "Functional.dropout.1.forward", "Torch.randn.0.forward"]
    assert len(set(found.values())) == 3
    assert found == _generators(tmp_path / "b")


def test_another_seed_is_another_state_but_not_of_a_generator_of_its_own(tmp_path: Path) -> None:
    first, second = _generators(tmp_path / "a", seed=0), _generators(tmp_path / "b", seed=1)
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"Functional.dropout.0.forward", "Functional.dropout.1.forward"}


def test_dropout_modules_say_it_at_level_l0(tmp_path: Path) -> None:
    assert list(_generators(tmp_path, level="L0")) == ["Module.1.Dropout.forward.0"]
