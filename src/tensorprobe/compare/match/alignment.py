"""Which call of the reference stands against which call of the candidate, and by what rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorprobe.errors import UsageError
from tensorprobe.run.call import Call
from tensorprobe.store.slot import Slot

SlotPair = tuple[Slot | None, Slot | None]
"""A slot of the reference and the slot of the candidate that it is held against; None where one side has none."""


@dataclass(frozen=True, slots=True)
class Match:
    """One call against one call; or a group against one call or another group, compared at their boundary."""

    reference: tuple[Call, ...]
    candidate: tuple[Call, ...]
    rule: str
    """`same name`, `wrapper`, `spelling`, `module tree`, `sequence`, `group`, `mapping`, `truth`"""
    boundary: tuple[SlotPair, ...] = ()
    """Of a group, also where one call stands against one: the slots to compare, all others are its own."""

    @property
    def is_group(self) -> bool:
        return len(self.reference) > 1 or len(self.candidate) > 1


def find_holder(calls: tuple[Call, ...], slot: Slot | None) -> Call:
    """Which call of a group has this slot; the last one made the result."""
    if len(calls) == 1:
        return calls[0]
    return next((call for call in calls if any(one is slot for one in call.slots)), calls[-1])


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A call that the other run does not make, and what comes closest to it there."""

    call: Call
    nearest: Call | None
    why: str
    """Why the nearest is not it: "other shape", "already paired with …"; "" when there is no nearest."""
    is_idle: bool = False
    """It needs no partner, because it changes nothing; `why` says how that is known."""
    is_passed_by: bool = False
    """And what comes out of it was made by another call."""


@dataclass(frozen=True)
class Alignment:
    """Every call of both runs is in exactly one match or one unpaired."""

    matches: tuple[Match, ...]
    """In the order of the reference's records."""
    only_reference: tuple[Unpaired, ...] = ()
    only_candidate: tuple[Unpaired, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)
    """Module paths of the reference and what they are called in the candidate, where that differs."""
    slots: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is known of tensors: for a call of the reference, its slots and the candidate's against them. A mapping file
    says so, or the operands of a sum are in another order."""
    unknown_names: dict[tuple[str, str], UsageError] = field(default_factory=dict)
    """Entries of a mapping file, by section and name, that stand for nothing in these two runs, and what to say."""
    has_same_gradient_order: bool = True
    """False when only one dump is msprobe's, which lists the gradients of a call in the order of autograd."""
