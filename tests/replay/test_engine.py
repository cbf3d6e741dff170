"""A recorded step, executed again: the recorded bits in the recorded precision, what it means in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.replay.program import PROGRAMS, count_gradients, make_program, record, run_replay


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_in_the_recorded_precision_gives_every_bit_again(name: str, level: str, tmp_path: Path) -> None:
    model, step = make_program(name)
    folder = record(tmp_path, model, step, level)
    replay, differences = run_replay(folder, "recorded")
    assert differences.found == []
    assert replay.coverage.gaps == {}
    assert differences.forward_count
    assert differences.gradient_count == count_gradients(folder)


@pytest.mark.parametrize("name", PROGRAMS)
def test_so_it_does_in_bfloat16_and_under_autocast(name: str, tmp_path: Path) -> None:
    model, step = make_program(name)
    if name == "attention":
        model.to(torch.bfloat16)
        folder = record(tmp_path, model, step)
    else:
        folder = record(tmp_path, model, step, cast=torch.bfloat16)
    replay, differences = run_replay(folder, "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})


@pytest.mark.parametrize("name", ["in_place", "router"])
def test_the_truth_is_what_the_same_program_gives_in_float64(name: str, tmp_path: Path) -> None:
    model, step = make_program(name)
    folder = record(tmp_path, model, step)
    replay, _ = run_replay(folder, "float64")
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        wide, wide_step = make_program(name)
        narrow, _ = make_program(name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert replay.coverage.gaps == {}
    del wide, wide_step, narrow


def test_a_call_that_cannot_be_made_again_keeps_its_recorded_results(tmp_path: Path) -> None:
    @torch.jit.script
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    folder = record(tmp_path, model, lambda: double(model(x)).sum())
    replay, differences = run_replay(folder, "recorded")
    assert list(replay.coverage.gaps) == ["Jit.double.0.forward"]
    assert [name for name in differences.found if name.endswith(".forward.output.0")] == []
