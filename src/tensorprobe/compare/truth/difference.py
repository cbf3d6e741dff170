"""Where two steps begin to mean different things, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.compare.truth.start import LeafPair
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue

Kind = Literal["source", "entered", "unequal start", "random", "discontinuity"]


@dataclass(frozen=True)
class Region:
    """Several calls of one run that stand against one call of the other."""

    side: str
    """Whose calls these are. The first of them is that of the difference."""
    last: TrueCall
    shared: tuple[str, ...]
    """The places of the one call in which it is given what the other run has, too."""


@dataclass(frozen=True)
class Difference:
    """One beginning. Its calls may be parts of recorded ones."""

    kind: Kind
    reference: TrueCall | None
    candidate: TrueCall | None
    because: str
    is_backward: bool = False
    leaf: TrueValue | None = None
    """What differs from the start."""
    effect: float | None = None
    """The share of the loss's difference that vanishes when the reference's value is put in its place."""
    is_called_otherwise: bool = False
    """Both calls do the same, with other arguments."""
    is_clear: bool = False
    """These two calls say it all."""
    takes_up_mask: bool = False
    """The candidate's call is given a mask that the reference has not, and what both have."""
    is_left_out: bool = False
    """The candidate's call takes what the reference's is given, where it should take what that gives."""
    region: Region | None = None
    """Where one call stands against several."""
    suspects: tuple[TrueCall, ...] = ()
    """Other calls of the candidate that may be meant."""

    @property
    def is_inside(self) -> bool:
        """Is one of its calls a part of a recorded one?"""
        return any(call is not None and call.inside is not None for call in (self.reference, self.candidate))

    @property
    def is_lone(self) -> bool:
        """Does only one run make such a call?"""
        return self.leaf is None and (self.reference is None or self.candidate is None)

    @property
    def is_found(self) -> bool:
        """Is nothing gained by looking inside its calls? They do the same, or say it all."""
        if self.leaf is not None or self.is_clear:
            return True
        if self.reference is None or self.candidate is None:
            return False
        return word_of(self.reference) == word_of(self.candidate)

    @property
    def is_given_other(self) -> bool:
        """Is all that is wrong with these calls that they are not given the same?"""
        return self.kind == "entered" and not self.is_called_otherwise and not self.is_clear and self.leaf is None

    @property
    def explains_all(self) -> bool:
        """Is there no difference of the loss without it?"""
        return self.effect is not None and abs(1 - self.effect) < TOLERANCE

    def calls(self) -> Iterator[tuple[str, TrueCall | None]]:
        yield "reference", self.reference
        yield "candidate", self.candidate

    def call(self, side: str) -> TrueCall | None:
        return self.reference if side == "reference" else self.candidate


def describe_call(call: TrueCall) -> str:
    """By its name, or as a part of a recorded call."""
    return call.name if call.inside is None else f"{word_of(call)} inside {call.inside}"


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
    size = "" if pair.error is None else f" (relative difference {pair.error:.2g})"
    because = f"{what} differs at the start{size}"
    users = steps["candidate"].users.get(leaf.number, [])
    if kind == "entered" and users and all(call.caller is not None for call in users):
        because = f"the optimizer's state, {what}, differs{size}; it comes from the previous step"
    for side, value in (("candidate", leaf), ("reference", pair.reference)):
        if value.is_gradient and not _is_computed(value, steps[side]):
            because = f"{what} is not the gradient that this step of the {side} computed: it was cleared too late "
            because += "or too early"
            break
    return Difference(kind, calls[0], calls[1], because, leaf=leaf)


def _is_computed(gradient: TrueValue, step: TrueStep) -> bool:
    """Is it that of a leaf, and nothing besides?"""
    found = (leaf.gradient for leaf in step.leaves if leaf.gradient is not None)
    return any(one.shape == gradient.array.shape and np.allclose(one, gradient.array) for one in found)
