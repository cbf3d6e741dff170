"""Replays both layouts, each with all its ranks together, and holds what they are for against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorprobe.compare.layout.data import Untaken, find_untaken
from tensorprobe.compare.layout.difference import Tracer
from tensorprobe.compare.layout.explanation import Explainer, Explanation
from tensorprobe.compare.layout.kernel import RankFinding, find_wrong_results
from tensorprobe.compare.layout.observable import GradientJudge, GradientMatch, Loss, match_loss, read_loss
from tensorprobe.compare.layout.pool import Steps
from tensorprobe.compare.layout.relation import Relations
from tensorprobe.compare.layout.rounding import Rounded, count_rounded, find_rounded
from tensorprobe.compare.layout.weight import Holdings, match_weights
from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.errors import DumpError
from tensorprobe.replay import MemoryLimit, find_device, limit_memory
from tensorprobe.replay.joint_step import build_joint_steps
from tensorprobe.replay.program import read_program
from tensorprobe.store.reader import RankDump

_ROUNDED_UNITS = 64.0
_MAX_EXPLAINED = 4


@dataclass
class LayoutJudgement:
    """What two layouts of one step mean, against each other."""

    reference: Steps
    candidate: Steps
    holdings: Holdings
    losses: tuple[Loss, Loss]
    loss: tuple[float, float, str] | None
    """Both losses and how that of the candidate is to be read; None where they differ."""
    gradients: list[GradientMatch]
    tolerance: float
    rounded: tuple[int, int] = (0, 0)
    """How many weights and data of either side were rounded, because the other has them in a coarser dtype."""
    differences: list[Explanation] = field(default_factory=list)
    untaken: list[Untaken] = field(default_factory=list)
    findings: list[RankFinding] = field(default_factory=list)
    """Where both mean the same: recorded results that are not what their calls mean."""

    @property
    def has_loss(self) -> bool:
        return bool(self.losses[0].totals or self.losses[1].totals)

    @property
    def has_same_loss(self) -> bool:
        return not self.has_loss or self.loss is not None

    @property
    def wrong_gradients(self) -> list[GradientMatch]:
        return [one for one in self.gradients if one.kind not in ("same", "unknown")]

    @property
    def unknown_gradients(self) -> list[GradientMatch]:
        return [one for one in self.gradients if one.kind == "unknown"]

    @property
    def is_equal(self) -> bool:
        """In all that both are for, if there is any of it."""
        is_known = self.has_loss or bool(self.gradients)
        return is_known and self.has_same_loss and not self.wrong_gradients and not self.holdings.strays

    @property
    def gaps(self) -> dict[str, str]:
        """The calls that could not be replayed, of both sides."""
        return {
            f"{side} {one.step.name} {name}": reason
            for side, steps in (("reference", self.reference), ("candidate", self.candidate))
            for one in steps.values()
            for name, reason in one.step.coverage.gaps.items()
        }

    @property
    def remarks(self) -> list[str]:
        found = (remark for one in self.candidate.values() for remark in one.step.coverage.remarks)
        return list(dict.fromkeys(found))


def judge_layouts(
    reference: Sequence[RankDump], candidate: Sequence[RankDump], *, explains: bool = True
) -> LayoutJudgement:
    """Both sides of one step, each with all its ranks. `explains`: where they differ, say where."""
    sides = [_replay(ranks) for ranks in (reference, candidate)]
    rounded = find_rounded(sides[0], sides[1]), find_rounded(sides[1], sides[0])
    sides = [
        _replay(ranks, leaves) if leaves else side
        for ranks, leaves, side in zip((reference, candidate), rounded, sides, strict=True)
    ]
    tolerance = max(TOLERANCE, _ROUNDED_UNITS * max(one.step.coarseness for side in sides for one in side.values()))
    losses = read_loss(sides[0]), read_loss(sides[1])
    holdings = match_weights(sides[0], sides[1])
    gradients = GradientJudge(holdings, sides[1], tolerance).judge()
    loss = match_loss(*losses, tolerance)
    counts = count_rounded(rounded[0]), count_rounded(rounded[1])
    found = LayoutJudgement(sides[0], sides[1], holdings, losses, loss, gradients, tolerance, counts)
    if explains and not found.has_same_loss and not holdings.strays:
        _explain(found)
    if found.is_equal:
        found.findings = find_wrong_results((sides[0], sides[1]), (reference, candidate))
    return found


def _explain(found: LayoutJudgement) -> None:
    found.untaken = list(find_untaken(found.reference, found.candidate))
    tracer = Tracer(found.candidate, Relations(found.reference, found.candidate, found.tolerance))
    explainer = Explainer(found.reference, found.candidate, tracer, found.tolerance)
    found.differences = [explainer.explain(one) for one in tracer.find_beginnings()[:_MAX_EXPLAINED]]


def _replay(ranks: Sequence[RankDump], replacements: Rounded | None = None) -> Steps:
    device = find_device("cpu")
    programs = [read_program(rank) for rank in ranks]
    limit_memory(programs, device, MemoryLimit())
    found = build_joint_steps(programs, device, replacements=replacements)
    if len(found) < len(ranks):
        raise DumpError(f"{ranks[0].folder.parent} has two processes of one rank: they cannot be replayed together.")
    return found
