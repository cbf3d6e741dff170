"""Programs drawn at random: a replay gives every bit of them again, and in float64 what they mean."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings

import tensorprobe
from tests.length import IS_LONG
from tests.replay.program import run_replay
from tests.replay.random_program import (
    CHANGING,
    DECIDING,
    RANDOM,
    ROUNDING,
    STEPS,
    Step,
    make_model,
    programs,
    run_program,
)
from tests.replay.state import FinalState

_FAST = settings(max_examples=100 if IS_LONG else 4, derandomize=not IS_LONG)
_PLAIN = [name for name in STEPS if name not in RANDOM | CHANGING | ROUNDING | DECIDING]


def all_of(names: Sequence[str]) -> list[Step]:
    """Each kind of step once."""
    return [(name, number, number + 3, (0.5, -0.75, 1.25)[number % 3]) for number, name in enumerate(names)]


@contextmanager
def recorded(steps: Sequence[Step], level: str) -> Iterator[Path]:
    """A program, recorded with its tensors."""
    folder = Path(tempfile.mkdtemp())
    model = make_model(torch.float32)
    try:
        with tensorprobe.capture(model, folder, level=level, task="tensor") as run:
            run_program(model, steps)
            run.step()
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.mark.parametrize("level", ["L1", "mix"])
@given(steps=programs())
@example(steps=all_of([name for name in STEPS if name != "penalty"]))
@example(steps=all_of([name for name in STEPS if name not in CHANGING]))
@example(steps=[("write through a view", 0, 1, 0.25), ("detach", 2, 0, -0.75), ("detach", 3, 2, 0.5)])
@_FAST
def test_a_replay_of_any_program_gives_every_bit_again(level: str, steps: list[Step]) -> None:
    names = {name for name, *_ in steps}
    assume("penalty" not in names or not names & CHANGING)  # a hook cannot be told from a second derivative
    with recorded(steps, level) as folder:
        replay, differences = run_replay(folder, "recorded")
        assert differences.found == []
        assert replay.coverage.gaps == {}
        assert replay.workspace.unseen_writes == []


@given(steps=programs(_PLAIN))
@example(steps=all_of(_PLAIN))
@_FAST
def test_the_truth_of_any_program_is_what_it_gives_in_float64(steps: list[Step]) -> None:
    with recorded(steps, "mix") as folder:
        state = FinalState(folder)
        model = make_model(torch.float32).to(torch.float64)
        run_program(model, steps)
        for name, parameter in model.named_parameters():
            if name not in state.tensors:
                continue  # the program did not use it
            assert state.is_close(name, parameter.detach(), 1e-12), name
            if parameter.grad is not None:
                assert state.is_close(f"{name}.grad", parameter.grad, 1e-11), name


@given(steps=programs([name for name in STEPS if name not in CHANGING]))
@example(steps=all_of([name for name in STEPS if name not in CHANGING]))
@_FAST
def test_nothing_is_found_in_any_program_that_is_right(steps: list[Step]) -> None:
    with recorded(steps, "L1") as folder:
        assert tensorprobe.truth(folder).findings == []
