"""What the corpus asks of a framework. `fault/pytorch` and `fault/mindspore` are its only implementations."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from fault.place import Code, Plan
    from fault.program import Program

FRAMEWORKS = ("pytorch", "mindspore")

Change = Callable[["Program", random.Random], str]


class Framework(Protocol):
    """One framework, as the corpus sees it."""

    models: Mapping[str, Callable[[Plan], Program]]
    deep: tuple[str, ...]
    """Models in which rounding has far to go: for pairs without a fault, and when they are asked for by name."""
    held_out: tuple[str, ...]
    """Models that nobody looks at while compare is tuned."""
    noises: Mapping[str, Callable[[], AbstractContextManager[None]]]
    """Legitimate differences between two runs, by name; the empty name is none."""
    changes: Mapping[str, Change]
    """What is done to the program of the candidate, for the kinds of fault that need no place; it says what changed."""

    def seed(self, seed: int) -> None:
        """Of all random numbers that follow."""

    def unsettle(self, program: Program) -> None:
        """As after some training: no bias is zero, no norm's weight is one, no statistics are those of the start."""

    def change_dtype(self, program: Program, dtype: str) -> None:
        """Of the weights and the data."""

    def modules(self, model: Any) -> Iterable[tuple[str, Any]]:
        """All modules of a model, each with its path."""

    def watch_calls(self, module: Any, notice: Callable[[], None]) -> None:
        """Call `notice` whenever a call of the module begins."""

    def is_grad_enabled(self) -> bool: ...

    def protect(self, code: Code[Any]) -> Code[Any]:
        """Code that computes in a lower precision, so that nothing after it is changed."""

    def run_step(self, program: Program, step: int) -> None:
        """What is recorded of a step; the optimizer comes after it."""

    def record(self, program: Program, level: str, task: str, steps: int, folder: Path) -> None:
        """Run a program under capture."""

    def kernels(self, dtype: str) -> AbstractContextManager[None]:
        """The kernels that all runs with this dtype are made with."""

    def load(self, file: Path) -> np.ndarray:
        """The numbers of a tensor file, without the code that is measured."""


@functools.cache
def framework_of(name: str) -> Framework:
    """Imported when it is asked for: no framework needs the other."""
    return importlib.import_module(f"fault.{name}.framework").FRAMEWORK  # type: ignore[no-any-return]
