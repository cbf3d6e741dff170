"""Where steps begin and end, told without a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorprobe.capture.framework import Undo
from tensorprobe.launch.step_cut import StepAt, StepCut


class Watch:
    """A program whose models and updates are told by hand."""

    sees_all_updates = True

    def __init__(self) -> None:
        self.is_waiting = self.is_followed = False

    def is_model(self, module: Any) -> bool:
        return True

    def makes_update(self, model: Any) -> bool:
        return False

    def follow_steps(self, listener: Any) -> Undo:
        self.is_followed = True
        return lambda: setattr(self, "is_followed", False)

    def await_root(self, listener: Any) -> Undo:
        self.is_waiting = True
        return lambda: setattr(self, "is_waiting", False)


class Session:
    """Steps that are counted, and windows that are open or not."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted = wanted
        self.current = 0
        self.is_started = False
        self.opened: list[int] = []

    @property
    def wants_step(self) -> bool:
        return self.current in self.wanted

    @property
    def wants_more(self) -> bool:
        return self.current <= max(self.wanted)

    def start(self) -> None:
        self.is_started = True
        self.opened.append(self.current)

    def step(self) -> None:
        self.is_started = False
        self.current += 1


class Model:
    """Something that can be held weakly."""


def make(wanted: set[int], step_at: StepAt = "auto") -> tuple[StepCut, Watch, Session, Callable[[], None]]:
    watch, session, model = Watch(), Session(wanted), Model()
    failures: list[Exception] = []
    cut = StepCut(watch, step_at, failures.append)
    cut.install(session)  # type: ignore[arg-type]

    def call() -> None:
        assert not failures
        if session.is_started and not cut.roots.before_call(model):
            return
        if watch.is_waiting:
            after = cut.before_root(model)
            if session.is_started:
                assert not cut.roots.before_call(model)  # the window sees the call that has opened it
            after()

    return cut, watch, session, call


def test_in_a_step_that_is_not_wanted_nothing_waits_for_models_until_the_update() -> None:
    cut, watch, session, call = make({1})
    cut.note_optimizer()
    call()
    assert not watch.is_waiting and watch.is_followed and not session.is_started
    cut.note_backward()
    assert not watch.is_waiting
    cut.note_update()
    assert watch.is_waiting
    call()
    assert session.opened == [1] and session.is_started and not watch.is_waiting


def test_after_the_last_wanted_step_nothing_is_installed() -> None:
    cut, watch, session, call = make({0})
    for _ in range(3):
        call()
        cut.note_update()
    assert session.opened == [0] and not watch.is_waiting and not watch.is_followed


def test_a_backward_pass_ends_a_step_only_if_there_is_no_optimizer_or_it_is_asked_for() -> None:
    for step_at, has_optimizer, opened in (
        ("auto", False, [0, 1]),
        ("auto", True, [0]),
        ("backward", True, [0, 1]),
    ):
        cut, _, session, call = make({0, 1}, step_at)  # type: ignore[arg-type]
        if has_optimizer:
            cut.note_optimizer()
        for _ in range(2):
            call()
            cut.note_backward()
        assert session.opened == opened, (step_at, has_optimizer)


def test_with_step_at_call_each_call_of_a_model_is_a_step() -> None:
    _, _, session, call = make({0, 2}, "call")
    for _ in range(4):
        call()
    assert session.opened == [0, 2]


def test_an_update_before_any_model_was_called_ends_no_step() -> None:
    cut, _, session, call = make({0})
    cut.note_update()
    call()
    assert session.opened == [0]
