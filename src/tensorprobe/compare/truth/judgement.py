"""Both steps of a pair of processes, replayed and held against each other by what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorprobe.compare.truth.difference import Difference, Explainer
from tensorprobe.compare.truth.leaf import find_replacements
from tensorprobe.compare.truth.observable import Observables, observe
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.errors import DumpError
from tensorprobe.replay import check_replayable
from tensorprobe.replay.result import Finding, Truth
from tensorprobe.replay.true_step import TrueStep
from tensorprobe.store.reader import RankDump

SIDES = ("reference", "candidate")


@dataclass
class Judgement:
    """What two steps mean, against each other."""

    observables: Observables
    steps: dict[str, TrueStep]
    truths: dict[str, Truth]
    """What is the matter with each run alone."""
    differences: list[Difference] = field(default_factory=list)
    second_point: Observables | None = None
    """The same with all parameters moved; None where that gives no numbers."""
    replaced: dict[str, int] = field(default_factory=dict)
    """How many leaves of each side took the finer value of the other."""

    @property
    def is_equal(self) -> bool:
        return self.observables.is_equal and (self.second_point is None or self.second_point.is_equal)

    @property
    def gaps(self) -> dict[str, str]:
        """The calls that could not be replayed, of both sides."""
        return {
            f"{side} {name}": reason for side, step in self.steps.items() for name, reason in step.coverage.gaps.items()
        }

    def lone_findings(self, side: str) -> Iterator[Finding]:
        """What is wrong in one run and not in the other."""
        other = self.truths[SIDES[side == SIDES[0]]]
        known = {(finding.kind, finding.record) for finding in other.findings}
        return (one for one in self.truths[side].findings if (one.kind, one.record) not in known)


def find_obstacle(reference: RankDump, candidate: RankDump) -> str | None:
    """Why two steps cannot be compared by truth; None if they can."""
    for rank in (reference, candidate):
        try:
            check_replayable(rank)
        except DumpError as error:
            return str(error)
    try:
        import torch  # noqa: F401
    except ImportError:
        return "a replay needs torch, which is not installed"
    return None


def judge_by_truth(reference: RankDump, candidate: RankDump) -> Judgement:
    """Replay both, fit their leaves, and hold their observables against each other at two points."""
    from tensorprobe.compare.truth.replaying import Replaying

    replaying = {SIDES[0]: Replaying(reference), SIDES[1]: Replaying(candidate)}
    steps = {side: one.replay_judged() for side, one in replaying.items()}
    counterparts = Counterparts(*steps.values())
    replacements = find_replacements(*steps.values(), counterparts)
    if any(replacements.values()):
        steps = {side: one.replay(replacements[side]) for side, one in replaying.items()}
        counterparts = Counterparts(*steps.values())
    observed = observe(*steps.values(), counterparts)
    found = Judgement(
        observed,
        steps,
        {side: one.truth for side, one in replaying.items()},
        replaced={side: len(one) for side, one in replacements.items()},
    )
    if not observed.is_equal:
        found.differences = Explainer(*steps.values(), counterparts).explain(observed)
        return found
    moved = {side: one.replay(replacements[side], is_shaken=True) for side, one in replaying.items()}
    counterparts = Counterparts(*moved.values())
    second = observe(*moved.values(), counterparts)
    if second.is_finite:
        found.second_point = second
        if not second.is_equal:
            found.differences = Explainer(*moved.values(), counterparts).explain(second)
    return found
