"""Places in a model where a fault can be planted, and the plan that says which of them is faulty in this run.

A place runs the right code or, if the plan says so, wrong code, inside a frame whose name is the mark of the place. So
stack.json tells which records were made there, in the reference and in the candidate, at every level, and the truth
about a fault never depends on what compare thinks. Nothing else differs between the two runs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from fault.framework import Framework

Value = TypeVar("Value")
Code = Callable[[], Value]


@dataclass(frozen=True, order=True)
class Place:
    """One visit of one site in one module."""

    path: str
    """The module whose code it is in; empty for the model itself, `-` for code outside all modules."""
    site: str
    visit: int
    """How often the site had been visited in this module before."""
    call: int = 0
    """Which call of the module it was in."""
    begun: int = 0
    """How many calls of modules had begun in the whole model."""

    @property
    def mark(self) -> str:
        return f"place[{self.path}:{self.site}:{self.visit}]"


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where."""

    kind: str
    place: Place
    factor: float = 2.0
    """How much, where that is a question: the wrong scale is this many times the right one."""


class Plan:
    """Which place computes something else in this run; none when there is no fault."""

    def __init__(self, framework: Framework, fault: Fault | None = None, rewrite: str = "") -> None:
        self.framework = framework
        self.fault = fault
        self.rewrite = rewrite
        """What is written differently at all its places, and is no fault."""
        self.offers: dict[str, list[Place]] = {}
        """The places that were visited and could have been faulty, for each kind."""
        self.was_planted = False
        self.calls: list[tuple[str, int]] = []
        """The calls of modules in the order in which they began: path, and how many of it came before."""
        self._paths: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._visits: Counter[tuple[str, str]] = Counter()

    @property
    def factor(self) -> float:
        return self.fault.factor if self.fault else 1.0

    def name_modules(self, model: Any) -> None:
        self._paths = {id(module): path for path, module in self.framework.modules(model)}
        for path, module in self.framework.modules(model):
            self.framework.watch_calls(module, functools.partial(self._count_call, path))

    def _count_call(self, path: str) -> None:
        self.calls.append((path, self._counts[path]))
        self._counts[path] += 1

    def at(self, owner: Any, site: str, right: Code[Value], **wrong: Code[Value] | None) -> Value:
        """The value of this place. `wrong` has the code for each kind of fault; None where it cannot be planted."""
        path = "-" if owner is None else self._paths[id(owner)]
        place = Place(path, site, self._visits[path, site], max(self._counts[path] - 1, 0), len(self.calls))
        self._visits[path, site] += 1
        code = right
        for kind, faulty in wrong.items():
            if faulty is None or (kind == "gradient_hook" and not self.framework.is_grad_enabled()):
                continue
            self.offers.setdefault(kind, []).append(place)
            if self.fault and (self.fault.kind, self.fault.place) == (kind, place):
                self.was_planted = True
                code = self.framework.protect(faulty) if kind == "precision" else faulty
            elif kind == self.rewrite:
                code = faulty
        return run_marked(place.mark, code)


def _run(code: Code[Value]) -> Value:
    return code()


def run_marked(mark: str, code: Code[Value]) -> Value:
    """Run it in a frame of this name: it shows in the stack of every call that is made there."""
    return FunctionType(_run.__code__.replace(co_name=mark), globals())(code)  # type: ignore[no-any-return]
