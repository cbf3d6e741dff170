"""How many calls and values of one step and rank are what: all that is said of them beside their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # result.py builds on this file
    from tensorprobe.compare.result import CallResult, ValuePair


@dataclass
class Tally:
    """Counts of one step and rank, or of several."""

    values: Counter[str] = field(default_factory=Counter)
    """Of all calls, by status."""
    roles: Counter[str] = field(default_factory=Counter)
    """Of all calls."""
    own_tensors: Counter[str] = field(default_factory=Counter)
    """Of the users' own calls, by status."""
    own_arguments: Counter[str] = field(default_factory=Counter)
    own_roles: Counter[str] = field(default_factory=Counter)
    framework_roles: Counter[str] = field(default_factory=Counter)
    """Of the calls that the framework made itself."""
    obstacles: Counter[str] = field(default_factory=Counter)
    """Why tensors of the users' own calls could not be compared."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Why they were compared only by what was recorded of them, although both were saved."""

    def count(self, calls: Iterable[CallResult]) -> Tally:
        for call in calls:
            self.roles[call.role] += 1
            is_own = not call.is_framework_made
            (self.own_roles if is_own else self.framework_roles)[call.role] += 1
            for value in call.values:
                self.values[value.status] += 1
                if is_own:
                    self._count_own(value)
        return self

    def _count_own(self, value: ValuePair) -> None:
        is_tensor = value.is_tensor
        (self.own_tensors if is_tensor else self.own_arguments)[value.status] += 1
        if is_tensor and value.status == "not comparable":
            self.obstacles[value.reason or "no reason is known"] += 1
        if value.measurement is not None and value.measurement.fallback is not None:
            self.fallbacks[value.measurement.fallback] += 1

    def add(self, other: Tally) -> None:
        for name, counts in vars(self).items():
            counts.update(getattr(other, name))
