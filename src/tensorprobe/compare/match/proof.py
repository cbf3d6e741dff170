"""What is known of the calls of two runs because both were executed again: which compute the same, and which do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def _refutes_nothing(reference: str, candidate: str) -> bool:
    return False


@dataclass(frozen=True)
class EqualRegion:
    """Calls of both runs that compute the same in another way, by their names."""

    reference: frozenset[str]
    candidate: frozenset[str]
    exits: tuple[tuple[str, str], ...]
    """Those that give the same results."""


@dataclass(frozen=True)
class Proof:
    """Calls by their names."""

    pairs: Mapping[str, str] = field(default_factory=dict)
    """Calls of the reference, and those of the candidate that compute the same of the same."""
    regions: Sequence[EqualRegion] = ()
    is_refuted: Callable[[str, str], bool] = _refutes_nothing
    """Does a call of the reference compute something else than one of the candidate, and not by a mistake?"""
    is_equal: bool = False
    """Do both runs compute the same in the end? Then no call needs a partner."""

    def mirrored(self) -> Proof:
        """With the runs exchanged."""
        return Proof(
            {candidate: reference for reference, candidate in self.pairs.items()},
            [EqualRegion(one.candidate, one.reference, tuple((b, a) for a, b in one.exits)) for one in self.regions],
            lambda reference, candidate: self.is_refuted(candidate, reference),
            self.is_equal,
        )
