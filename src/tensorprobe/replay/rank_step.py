"""One of several ranks of a step: its calls and values, what it communicates, its parameters and their gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorprobe.replay.communication import Communication
from tensorprobe.replay.true_step import Array, TrueStep


@dataclass(eq=False)
class RankStep:
    """One rank."""

    rank: int
    step: TrueStep
    communications: dict[str, Communication]
    """By the names of their calls."""
    parameters: dict[str, Array] = field(default_factory=dict)
    """What it has of each parameter, by its name: of one that is spread over ranks, its part."""
    gradients: dict[str, Array] = field(default_factory=dict)
    """Of the parameters, in the same form, after all that was recorded."""
    updated: dict[str, Array] = field(default_factory=dict)
    """The parameters after the step, those that were written to."""
