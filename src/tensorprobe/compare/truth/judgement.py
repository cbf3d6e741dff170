"""Both steps of a pair of processes, replayed and held against each other by what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.difference import Difference, describe_start
from tensorprobe.compare.truth.effect import add_effects
from tensorprobe.compare.truth.forward_difference import explain_forward
from tensorprobe.compare.truth.gradient_difference import GradientExplainer
from tensorprobe.compare.truth.leaf import find_movable, find_replacements
from tensorprobe.compare.truth.observable import Observables, observe
from tensorprobe.compare.truth.precision import PrecisionLoss, find_precision_loss
from tensorprobe.compare.truth.start import LeafPair, Origin, Origins, pair_lone_leaves, pair_moved_leaves
from tensorprobe.compare.truth.value_index import Counterparts, is_laid_out, is_same
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.replay import check_replayable, find_device, find_untold_layer, tells_tensors_apart
from tensorprobe.replay.result import Finding, Truth
from tensorprobe.replay.true_step import TrueStep
from tensorprobe.run.step import Run
from tensorprobe.store.reader import RankDump

SIDES = ("reference", "candidate")
_LEAST_TELLING = 1e-3
"""Where recorded results of coarse precision had to be taken, truth says nothing."""


@dataclass
class Judgement:
    """What two steps mean, against each other."""

    observables: Observables
    steps: dict[str, TrueStep]
    truths: dict[str, Truth] = field(default_factory=dict)
    """What is the matter with each run alone; looked at only where both mean the same."""
    differences: list[Difference] = field(default_factory=list)
    second_point: Observables | None = None
    """The same with all parameters moved; None where that gives no numbers."""
    precision_loss: PrecisionLoss | None = None
    replaced: dict[str, int] = field(default_factory=dict)
    """How many leaves of each side took the finer value of the other."""
    unequal: list[LeafPair] = field(default_factory=list)
    """Leaves with other numbers. The runs mean the same, but for these."""

    @property
    def is_equal(self) -> bool:
        return self.observables.is_equal and (self.second_point is None or self.second_point.is_equal)

    def find_origins(self) -> dict[str, list[Origin]]:
        """The parameters of the candidate, each with those of the reference that it is made of."""
        found: dict[str, list[Origin]] = {}
        for pair in self.observables.gradients:
            origin = pair.find_origin()
            if origin is not None and pair.candidate.parameter is not None:
                found.setdefault(pair.candidate.parameter, []).append(origin)
        return found

    @property
    def obstacle(self) -> str | None:
        """Why it is worth nothing; None if it is worth something."""
        for side, step in self.steps.items():
            if step.rewritten:
                return (
                    f"the {side} holds more than one training step ({step.rewritten[0]} changes, and no recorded call "
                    "writes to it): record each step into a folder of its own"
                )
        if self.observables.tolerance > _LEAST_TELLING:
            return f"{len(self.gaps)} calls could not be executed again"
        return None

    @property
    def gaps(self) -> dict[str, str]:
        """The calls that could not be replayed, of both sides."""
        return {
            f"{side} {name}": reason for side, step in self.steps.items() for name, reason in step.coverage.gaps.items()
        }

    def is_same_value(self, reference: tuple[str, str], candidate: tuple[str, str]) -> bool | None:
        """Have two values, by record and place, the same truth? None where that of one is not known."""
        numbers = {}
        for side, (record, slot) in zip(SIDES, (reference, candidate), strict=True):
            call = self.steps[side].calls.get(record)
            number = None if call is None else call.inputs.get(slot, call.outputs.get(slot))
            if number is None:
                return None
            numbers[side] = self.steps[side].values[number]
        first, second = numbers[SIDES[0]].array, numbers[SIDES[1]].array
        tolerance = self.observables.tolerance
        return is_same(first, second, tolerance) or (
            first.size == second.size and is_laid_out(first, second, tolerance)
        )

    def lone_findings(self, side: str) -> Iterator[Finding]:
        """What is wrong in one run and not in the other."""
        if side not in self.truths:
            return iter(())
        other = self.truths[SIDES[side == SIDES[0]]]
        known = {(finding.kind, finding.record) for finding in other.findings}
        return (one for one in self.truths[side].findings if (one.kind, one.record) not in known)


def find_obstacle(reference: RankDump, candidate: RankDump) -> str | None:
    """Why two steps cannot be compared by truth; None if they can."""
    try:
        for rank in (reference, candidate):
            check_replayable(rank)
            if not tells_tensors_apart(rank):
                return f"{rank.folder} does not say which tensors are the same: it is another tool's, or an older dump"
            layer = find_untold_layer(rank)
            if layer is not None:
                return (
                    f"{rank.folder} does not say which calls {layer} is made of: record it again with this version, "
                    "with filter_data=False"
                )
        find_device("cpu")
    except (DumpError, UsageError) as error:
        return str(error)
    return None


def judge_by_truth(reference: Run, candidate: Run, origins: Origins | None = None) -> Judgement:
    """Replay both, fit their leaves, and hold their observables against each other at two points. `origins`: at a
    later step, where parameters differ, what those of the candidate are made of."""
    from tensorprobe.compare.truth.replaying import Replaying

    arguments = Arguments(reference, candidate)
    replaying = {SIDES[0]: Replaying(reference.rank), SIDES[1]: Replaying(candidate.rank)}
    steps = {side: one.replay({}) for side, one in replaying.items()}
    counterparts = Counterparts(**steps)
    replacements = find_replacements(counterparts)
    if any(replacements.values()):
        steps = {side: one.replay(replacements[side]) for side, one in replaying.items()}
        counterparts = Counterparts(**steps)
    found = Judgement(observe(counterparts), steps, replaced={side: len(one) for side, one in replacements.items()})
    if found.obstacle is not None:
        return found
    if not found.observables.is_equal:
        pairs = pair_lone_leaves(counterparts) if origins is None else pair_moved_leaves(counterparts, origins)
        put = {pair.candidate.key: pair.content for pair in pairs if pair.candidate.key is not None}
        if put:
            again = replaying[SIDES[1]].replay({**replacements[SIDES[1]], **put})
            as_if = Counterparts(steps[SIDES[0]], again)
            observed = observe(as_if)
            if observed.is_equal or origins is not None:  # an update of the same program moves them
                replacements[SIDES[1]].update(put)
                counterparts, found.observables, found.unequal = as_if, observed, pairs
                found.steps = counterparts.steps
    if not found.observables.is_equal:
        differences = _explain(counterparts, found.observables, arguments)
        execute = partial(replaying[SIDES[1]].replay, replacements[SIDES[1]], ())
        found.differences = add_effects(differences, found.observables, counterparts.steps, execute)
        return found
    if found.unequal and origins is None:
        found.differences = [describe_start(pair, counterparts.steps) for pair in found.unequal]
        return found
    if any(step.coarseness for step in counterparts.steps.values()):
        return found  # recorded results do not move with the parameters
    movable = find_movable(counterparts)
    moved = Counterparts(**{side: one.replay(replacements[side], movable[side]) for side, one in replaying.items()})
    second = observe(moved)
    takes_recorded = any(
        step.coverage.decisions for step in moved.steps.values()
    )  # a choice, and others are right there
    if second.is_finite and not takes_recorded:
        found.second_point = second
        if not second.is_equal:
            found.differences = _explain(moved, second, arguments)
            return found
    if not found.unequal:
        found.truths = {side: one.find_truth() for side, one in replaying.items()}
        found.precision_loss = find_precision_loss(counterparts, found.truths)
    return found


def _explain(counterparts: Counterparts, observed: Observables, arguments: Arguments) -> list[Difference]:
    """Where they part: in the forward, and if that is the same, in the gradients."""
    is_same = observed.has_same_loss and not observed.ends
    found = [] if is_same else explain_forward(counterparts, observed, arguments)
    return found or GradientExplainer(counterparts).explain()
