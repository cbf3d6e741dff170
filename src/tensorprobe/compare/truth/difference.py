"""Where two steps begin to mean different things, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tensorprobe.compare.truth.start import LeafPair
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue

Kind = Literal["source", "entered", "unequal start", "random", "discontinuity", "missing"]


@dataclass(frozen=True)
class Difference:
    """One beginning."""

    kind: Kind
    reference: TrueCall | None
    candidate: TrueCall | None
    because: str
    is_backward: bool = False
    leaf: TrueValue | None = None
    """What differs from the start."""
    effect: float | None = None
    """The share of the loss's difference that vanishes when the reference's value is put in its place."""
    suspects: tuple[TrueCall, ...] = ()
    """Other calls of the candidate that may be meant."""


def describe_start(pair: LeafPair, steps: Mapping[str, TrueStep]) -> Difference:
    """What the runs began with is not the same here."""
    calls = [
        next(iter(steps[side].users.get(value.number, [])), None)
        for side, value in (("reference", pair.reference), ("candidate", pair.candidate))
    ]
    leaf = pair.candidate
    kind: Kind = "unequal start" if leaf.parameter or leaf.is_trained else "entered"
    what = (
        pair.name
        if leaf.parameter or pair.reference.parameter or calls[1] is None
        else f"{leaf.slot} of {calls[1].name}"
    )
    size = "" if pair.error is None else f": they differ by {pair.error:.2g}"
    return Difference(kind, calls[0], calls[1], f"{what} is not the same at the start{size}", leaf=leaf)
