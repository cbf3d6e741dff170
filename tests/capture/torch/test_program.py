"""What is seen of a program of PyTorch, between two windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tensorprobe.capture.patch import nothing
from tensorprobe.capture.torch.program import TorchProgram


class Listener:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.roots: list[Any] = []

    def note_optimizer(self) -> None:
        raise AssertionError("no optimizer is made here")

    def note_update(self) -> None:
        raise AssertionError("no optimizer makes a step here")

    def note_backward(self) -> None:
        raise AssertionError("no backward pass runs here")

    def before_root(self, model: Any) -> Callable[[], None]:
        self.roots.append(model)
        return nothing


def test_a_class_that_took_the_call_of_modules_while_a_model_was_awaited_tells_of_nothing_afterwards() -> None:
    listener = Listener()
    stop_waiting = TorchProgram().await_root(listener)

    class Taken(nn.Linear):
        __call__ = nn.Module.__call__

    model = Taken(2, 2)
    model(torch.ones(1, 2))
    stop_waiting()
    model(torch.ones(1, 2))
    assert listener.roots == [model]


def test_a_call_that_was_kept_is_handed_on_to_what_is_there_now() -> None:
    """generate() of transformers keeps `model.__call__` before its first step."""
    listener, model = Listener(), nn.Linear(2, 2)
    program = TorchProgram()
    stop_waiting = program.await_root(listener)
    forward = model.__call__
    stop_waiting()
    stop_waiting = program.await_root(listener)
    try:
        forward(torch.ones(1, 2))
    finally:
        stop_waiting()
    assert listener.roots == [model]


def test_a_call_that_was_kept_and_is_now_called_by_a_patch_around_it_ends() -> None:
    stop_waiting = TorchProgram().await_root(Listener())
    kept = nn.Module.__call__
    stop_waiting()
    original = nn.Module.__call__
    nn.Module.__call__ = lambda module, *args: kept(module, *args)  # type: ignore[assignment,method-assign]
    try:
        assert nn.Linear(2, 2)(torch.ones(1, 2)).shape == (1, 2)
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
