"""The garbage collector does not run more often because a capture makes objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.capture.collector import Collector
from tests.capture.torch.training import open_session


@pytest.fixture(autouse=True)
def _usual_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def make(collector: Collector, count: int) -> list[Any]:
    """So many objects that are ours."""
    before = collector.begin()
    made: list[Any] = [[number] for number in range(count)]
    collector.end(before)
    return made


def test_it_waits_for_as_many_objects_more_as_are_ours() -> None:
    collector = Collector()
    gc.collect()
    held = [make(collector, 600), make(collector, 500)]
    assert 1780 <= gc.get_threshold()[0] <= 1820 + 256 and gc.get_threshold()[1:] == (10, 10)
    collector.restore()
    assert gc.get_threshold() == (700, 10, 10) and held


def test_it_does_not_wait_for_what_is_gone() -> None:
    collector = Collector()
    gc.collect()
    held = [make(collector, 600), make(collector, 500)]
    before = collector.begin()
    del held[0]
    collector.end(before)
    assert 1180 <= gc.get_threshold()[0] <= 1220 + 256, "gone while something was noted"
    held.clear()
    collector.look_again()
    assert gc.get_threshold()[0] <= 720 + 256, "gone while the program ran"
    collector.restore()


def test_what_it_has_looked_at_once_is_not_passed_over_again() -> None:
    collector = Collector()
    held = [make(collector, 600)]
    gc.collect()
    held.append(make(collector, 300))
    assert gc.get_threshold()[0] <= 1020 + 256
    collector.restore()


def test_the_garbage_of_a_program_does_not_wait_for_ever() -> None:
    collector = Collector()
    gc.disable()
    try:
        held = [make(collector, 1 << 15) for _ in range(4)]
    finally:
        gc.enable()
    assert gc.get_threshold()[0] <= 700 + (1 << 16) and held
    collector.restore()


def test_what_the_program_sets_meanwhile_is_what_counts() -> None:
    collector = Collector()
    held = [make(collector, 500)]
    gc.set_threshold(5000, 20, 30)
    held.append(make(collector, 300))
    assert 5000 < gc.get_threshold()[0] <= 5000 + 820 + 256 and gc.get_threshold()[1:] == (20, 30)
    gc.set_threshold(300)
    collector.restore()
    assert gc.get_threshold()[0] == 300


def test_a_program_that_puts_back_what_it_has_found_in_a_window_does_not_keep_it() -> None:
    collector = Collector()
    held = [make(collector, 500)]
    found = gc.get_threshold()
    collector.restore()
    gc.set_threshold(*found)
    held.append(make(collector, 300))
    collector.restore()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_number_that_the_program_has_wanted_before_is_its_own_again() -> None:
    collector = Collector()
    for wanted in (5000, 700, 0, 700):
        gc.set_threshold(wanted)
        held = [make(collector, 600)]
        before = collector.begin()
        held.clear()
        collector.end(before)  # all of ours is gone
        collector.restore()
        assert gc.get_threshold()[0] == wanted


def test_a_collector_that_the_program_has_switched_off_stays_off() -> None:
    collector = Collector()
    gc.set_threshold(0)
    held = make(collector, 1000)
    collector.restore()
    assert gc.get_threshold()[0] == 0 and held


def test_what_it_keeps_does_not_grow_with_the_number_of_windows() -> None:
    collector = Collector()
    held = []
    for count in range(600, 1600, 10):
        held.append(make(collector, count))
        collector.restore()
        gc.collect(0)
    assert len(collector._raised) <= 5 and held


class Cycle:
    more: Any

    def __init__(self) -> None:
        self.itself = self


def count_runs() -> int:
    return int(gc.get_stats()[0]["collections"])


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_recorded_pass_runs_it_hardly_more_often_and_leaves_it_as_it_was(level: str, tmp_path: Path) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(100)])
    with closing(open_session(tmp_path, level=level)) as session:
        for _ in range(2):  # a first step also imports
            session.start(model)
            before = count_runs()
            loss = model(torch.ones(2, 4)).sum()
            runs = count_runs() - before
            loss.backward()
            runs_with_backward = count_runs() - before
            session.stop()
            assert gc.get_threshold() == (700, 10, 10)
            session.step()
    assert session.recorder.coverage.seen >= 100
    assert runs <= 3, "100 calls make some 8,000 objects"
    assert runs_with_backward <= 4


class Mess(torch.autograd.Function):
    """Each backward leaves garbage behind."""

    left: list[weakref.ref[Cycle]]
    most: int

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        garbage = Cycle()
        garbage.more = [[number] for number in range(20)]
        Mess.left.append(weakref.ref(garbage))
        Mess.most = max(Mess.most, sum(one() is not None for one in Mess.left))
        return gradients[0] * 2


def count_left_in_backward(step: Any) -> int:
    """How much garbage of three backward passes was there at once."""
    Mess.left, Mess.most = [], 0
    for _ in range(3):
        x = torch.ones(2, 4, requires_grad=True)
        y = x
        for _ in range(100):
            y = Mess.apply(y)
        step(y.sum())
    return Mess.most


class Littering(torch.nn.Module):
    """Each call leaves garbage behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.left: list[weakref.ref[Cycle]] = []
        self.most = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = self.layer(x)
            garbage = Cycle()
            garbage.more = [[number] for number in range(20)]
            self.left.append(weakref.ref(garbage))
            self.most = max(self.most, sum(one() is not None for one in self.left))
        return x.sum()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_garbage_that_a_program_makes_in_a_window_does_not_wait_longer(level: str, tmp_path: Path) -> None:
    plain, recorded = Littering(), Littering()
    gc.collect()
    for _ in range(3):
        plain(torch.ones(2, 4))
    with closing(open_session(tmp_path, level=level)) as session:
        session.start(recorded)
        for _ in range(3):
            recorded(torch.ones(2, 4)).backward()
    assert recorded.most <= 4 * plain.most, (recorded.most, plain.most)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_nor_does_what_a_backward_leaves(level: str, tmp_path: Path) -> None:
    gc.collect()
    plain = count_left_in_backward(torch.Tensor.backward)
    with closing(open_session(tmp_path, level=level)) as session:
        session.start(torch.nn.Linear(1, 1))
        recorded = count_left_in_backward(torch.Tensor.backward)
    assert recorded <= 4 * plain, (recorded, plain)
