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
