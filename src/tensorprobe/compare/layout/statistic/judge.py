"""What the statistics of two layouts of one step say of each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorprobe.compare.layout.difference import Beginning, Tracer
from tensorprobe.compare.layout.observable import Loss, list_ranks, match_loss, read_loss
from tensorprobe.compare.layout.statistic.gradient import SummaryGradient, SummaryGradients
from tensorprobe.compare.layout.statistic.relation import SummaryRelations, is_random
from tensorprobe.compare.layout.statistic.step import SummaryRanks
from tensorprobe.compare.layout.statistic.weight import SummaryHeld, match_summaries
from tensorprobe.compare.result import VerdictKind
from tensorprobe.replay.true_step import UNITS

ROOM = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2}
"""What rounding, in another order of sums, does to statistics at most."""
_LOSS_SHARE = 1 / 3
"""The loss is a mean of many: so much less of it is rounding."""
_MAX_EXPLAINED = 4


@dataclass
class SummaryJudgement:
    """What the statistics of two layouts say of each other."""

    reference: SummaryRanks
    candidate: SummaryRanks
    held: list[SummaryHeld]
    losses: tuple[Loss, Loss]
    loss: tuple[float, float, str] | None
    gradients: list[SummaryGradient]
    beginnings: list[tuple[Beginning, VerdictKind, str]] = field(default_factory=list)
    last: Beginning | None = None
    """Where rounding may hide the difference at the first of them: the call at which it is beyond rounding."""

    @property
    def strays(self) -> list[SummaryHeld]:
        return [one for one in self.held if one.kind == "stray"]

    @property
    def wrong_gradients(self) -> list[SummaryGradient]:
        return [one for one in self.gradients if one.kind not in ("same", "unknown")]

    @property
    def has_losses(self) -> bool:
        return bool(self.losses[0].totals and self.losses[1].totals)


def judge_summaries(reference: SummaryRanks, candidate: SummaryRanks) -> SummaryJudgement:
    tolerance = max(
        (ROOM.get(dtype, 0.0) for side in (reference, candidate) for one in side.values() for dtype in one.dtypes),
        default=ROOM["float32"],
    )
    steps = [{rank: one.rank for rank, one in side.items()} for side in (reference, candidate)]
    held = match_summaries(reference, candidate)
    losses = read_loss(steps[0]), read_loss(steps[1])
    gradients = list(SummaryGradients(reference, candidate, tolerance).judge(held))
    found = SummaryJudgement(
        reference, candidate, held, losses, match_loss(*losses, _LOSS_SHARE * tolerance), gradients
    )
    if found.has_losses and found.loss is None and not found.strays:
        found.beginnings = _find_beginnings(found, tolerance)
        if not found.beginnings and _is_within(losses, tolerance):
            _look_closer(found, tolerance)
    return found


def _find_beginnings(found: SummaryJudgement, tolerance: float) -> list[tuple[Beginning, VerdictKind, str]]:
    steps = {rank: one.rank for rank, one in found.candidate.items()}
    tracer = Tracer(steps, SummaryRelations(found.reference, found.candidate, tolerance))
    begun = sorted(tracer.find_beginnings(), key=lambda one: one.call.caller is not None)  # the framework's come last
    return [(one, *_explain(one, tracer)) for one in begun[:_MAX_EXPLAINED]]


def _is_within(losses: tuple[Loss, Loss], tolerance: float) -> bool:
    """Do the losses differ by so little that each value may, too? Else they are scaled in another way."""
    (expected, found) = (next(iter(loss.readings.values()), 0.0) for loss in losses)
    return abs(found - expected) <= tolerance * abs(expected)


def _look_closer(found: SummaryJudgement, tolerance: float) -> None:
    """With less room, down to one rounding: the first call that is seen then, up to the one that is seen with most."""
    dtypes = {dtype for side in (found.reference, found.candidate) for one in side.values() for dtype in one.dtypes}
    least = max((UNITS.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    tolerance /= 2
    while tolerance >= least > 0:
        begun = _find_beginnings(found, tolerance)
        if begun:
            found.last = found.last or begun[0][0]
            found.beginnings = begun[:1]
        tolerance /= 2


def _explain(beginning: Beginning, tracer: Tracer) -> tuple[VerdictKind, str]:
    if is_random(beginning.call):
        return "random", "it drew different random numbers"
    for member, slot, value in tracer.inputs(beginning.rank, beginning.call):
        relation = tracer.relation(member, value)
        if relation is None or not relation.is_share:
            continue
        members = [rank for rank, _ in tracer.find_members(beginning.rank, beginning.call.name)]
        missing = [rank for rank in relation.ranks if rank not in members]
        left_out = f", and those of {list_ranks(missing)} are left out" if missing else ""
        rest = ", but nothing has added them up" if len(members) == 1 else left_out
        call, name = relation.known.call, relation.known.name
        return "source", (
            f"its {slot} is one of {len(relation.ranks)} parts whose sum over {list_ranks(relation.ranks)} is "
            f"{name if call is None else f'{name} of {call.name}'} of the reference{rest}"
        )
    return "source", (
        "its inputs have the statistics of the reference, as a whole or in parts, but its result does not (integers, "
        "such as tokens and labels, were not compared)"
    )
