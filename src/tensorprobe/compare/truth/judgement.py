"""Both steps of a pair of processes, replayed and held against each other by what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.observable import Observables
from tensorprobe.compare.truth.precision import PrecisionLoss, find_precision_loss
from tensorprobe.compare.truth.same_array import is_laid_out, is_same
from tensorprobe.compare.truth.start import LeafPair, Origin
from tensorprobe.compare.truth.update import UpdatePair, find_updated
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.count import count_noun
from tensorprobe.replay import check_replayable, find_device, find_untold_layer, tells_tensors_apart
from tensorprobe.replay.result import Finding, Truth
from tensorprobe.replay.true_step import UNITS, TrueStep
from tensorprobe.run.backward_pass import PASS
from tensorprobe.run.step import Run

if TYPE_CHECKING:
    from tensorprobe.compare.truth.replaying import Replaying

SIDES = ("reference", "candidate")
_RIGHT = 1e-4
"""Where the loss and all gradients are so near to their truth, a coarse kernel is to blame for nothing …"""
_COARSE = 1e-3
"""… if what it gives is off by no more than this: gradients of parameters are not always recorded."""
_LEAST_TELLING = 1e-3
"""Where recorded results of coarse precision had to be taken, truth says nothing."""


_SAME_NUMBERS = 1e-3
"""What goes wrong in both runs does so with numbers that rounding alone keeps apart."""


@dataclass
class Judgement:
    """What two steps mean, against each other."""

    observables: Observables
    counterparts: Counterparts
    runs_alike: dict[str, Replaying] = field(default_factory=dict)
    """Both runs, if they mean the same: what is left to look at is how each computes it."""
    truths: dict[str, Truth] = field(default_factory=dict)
    """What is the matter with each run alone."""
    differences: list[Difference] = field(default_factory=list)
    second_point: Observables | None = None
    """The same with all parameters moved; None where that gives no numbers."""
    updates: tuple[UpdatePair, ...] = ()
    """What becomes of the parameters, where both runs have recorded it."""
    is_one_program: bool = False
    """Are all calls the same, with the same arguments, and so linked?"""
    precision_loss: PrecisionLoss | None = None
    replaced: dict[str, int] = field(default_factory=dict)
    """How many leaves of each side took the finer value of the other."""
    unequal: list[LeafPair] = field(default_factory=list)
    """Leaves with other numbers. The runs mean the same, but for these."""
    spread: dict[str, float] = field(default_factory=dict)
    """What comes of that: how far the gradient of each parameter of the candidate is from the one that it would have
    with the reference's parameters, as a share of it."""
    borrowers: tuple[str, ...] = ()
    """The sides that were recorded with statistics only."""
    unknown: int = 0
    """How many tensors one of them starts from that the other neither has nor computes."""

    @property
    def is_drawn(self) -> bool:
        """Were they executed again with other numbers than those that they had? Neither has kept any."""
        return self.borrowers == SIDES

    @property
    def steps(self) -> dict[str, TrueStep]:
        return self.counterparts.steps

    @property
    def coarsest(self) -> float:
        """The unit of rounding of the coarsest dtype in either run: that of bfloat16 under autocast."""
        return max((UNITS.get(value.dtype, 0.0) for step in self.steps.values() for value in step.values), default=0.0)

    @property
    def is_equal(self) -> bool:
        is_updated_alike = all(pair.is_equal for pair in self.updates)
        is_equal = self.observables.is_equal and is_updated_alike
        return is_equal and (self.second_point is None or self.second_point.is_equal)

    @property
    def proves_updates(self) -> bool:
        """Is each parameter that the candidate changes the same as that of the reference?"""
        names = {name for pair in self.updates for name in (pair.candidate.parameter,) if pair.is_equal}
        return bool(names) and names.issuperset(find_updated(self.steps[SIDES[1]]))

    def look_closer(self, *, only_sums: bool = False) -> None:
        """Hold each call of each run against what it means, which takes longer than all else. `only_sums`: nothing is
        looked for but gradients that something has changed on their way."""
        if not self.runs_alike or self.truths:
            return
        self.truths = {side: one.find_truth() for side, one in self.runs_alike.items()}
        if only_sums:
            self.truths = {
                side: replace(truth, findings=[one for one in truth.findings if one.kind == "sum"])
                for side, truth in self.truths.items()
            }
        else:
            self.precision_loss = find_precision_loss(self.counterparts, self.truths)

    def find_origins(self) -> dict[str, list[Origin]]:
        """The parameters of the candidate, each with those of the reference that it is made of."""
        found: dict[str, list[Origin]] = {}
        for pair in self.observables.gradients:
            reference, candidate = (
                self.steps[side].name_of(leaf)
                for side, leaf in zip(SIDES, (pair.reference, pair.candidate), strict=True)
            )
            origin = pair.find_origin(reference)
            if origin is not None:
                found.setdefault(candidate, []).append(origin)
        return found

    @property
    def obstacle(self) -> str | None:
        """Why it is worth nothing; None if it is worth something."""
        if self.unknown:
            tensors = count_noun(
                self.unknown, "tensor that one run starts from is", "tensors that one run starts from are"
            )
            return f"{tensors} neither in the other run nor computed there"
        for side, step in self.steps.items():
            if step.rewritten:
                return (
                    f"the {side} holds more than one training step ({step.rewritten[0]} changes, and no recorded call "
                    "writes to it): record each step into a folder of its own"
                )
            if step.is_transformed != self.steps[other_side(side)].is_transformed:
                return "one run asks for gradients inside torch.func, where tensors have no content"
            if side in self.borrowers and not _is_whole(step):
                return f"the {side} was recorded with statistics only, which is not enough for some of its calls"
            lost = next(filter(step.is_taken_as_recorded, step.roots), None)
            if lost is not None:
                return f"{lost.maker} of the {side} computes the loss, and could not be executed again"
            failed = next((name for name in step.coverage.gaps if name.startswith(PASS)), None)
            if failed is not None and self.observables.has_same_loss:
                return f"{failed} of the {side} could not be run again ({step.coverage.gaps[failed]})"
        if self.observables.tolerance > _LEAST_TELLING:
            return f"{count_noun(len(self.gaps), 'call')} could not be executed again"
        if not self._has_results():
            return "they compute no floating-point result, and integers and booleans are not judged by truth"
        return None

    def _has_results(self) -> bool:
        """Is there anything that both could agree in?"""
        is_trained = self.observables.losses or self.observables.gradients
        return bool(is_trained) or any(step.is_end(value) for step in self.steps.values() for value in step.values)

    @property
    def gaps(self) -> dict[str, str]:
        """The calls that could not be replayed, of both sides, but for those that only check something."""
        return {
            f"{side} {name}": reason
            for side, step in self.steps.items()
            for name, reason in step.coverage.gaps.items()
            if side not in self.borrowers  # of which only what an optimizer calls is left out
            and not (name in step.calls and step.is_test(step.calls[name]))
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
        return is_same(first, second, tolerance) or is_laid_out(first, second, tolerance)

    def lone_findings(self, side: str) -> Iterator[Finding]:
        """What is wrong in one run and not in the other."""
        return (one for one in self._own_findings(side) if not self._is_only_coarse(side, one))

    def coarse_kernels(self, side: str) -> Iterator[Finding]:
        """What is computed with fewer digits than its dtype has, in one run and not in the other, and shows nowhere."""
        return (one for one in self._own_findings(side) if self._is_only_coarse(side, one))

    def _own_findings(self, side: str) -> Iterator[Finding]:
        if side not in self.truths:
            return iter(())
        known = self.truths[SIDES[side == SIDES[0]]].findings
        return (one for one in self.truths[side].findings if not any(_is_same_finding(one, other) for other in known))

    def _is_only_coarse(self, side: str, finding: Finding) -> bool:
        if finding.kind not in ("kernel", "derivative") or finding.judgement is None:
            return False
        truth = self.truths[side]
        own = (row.accumulated for row in truth.rows if (row.record, row.slot) == (finding.record, finding.slot))
        return truth.worst_error <= _RIGHT and all(error is not None and error.relative <= _COARSE for error in own)


def _is_same_finding(one: Finding, other: Finding) -> bool:
    """Does the same go wrong in both runs, in calls of one name, or with the same numbers?"""
    if one.kind != other.kind or one.record == other.record:
        return one.kind == other.kind
    if one.judgement is None or other.judgement is None:
        return False
    first, second = one.judgement, other.judgement
    pairs = ((first.recorded, second.recorded), (first.true, second.true))
    return all(math.isclose(*pair, rel_tol=_SAME_NUMBERS) for pair in pairs)


def _is_whole(step: TrueStep) -> bool:
    """Was the whole program executed again? What an optimizer does comes after it."""
    gaps = [step.calls.get(name) for name in step.coverage.gaps]
    is_left_out = any(call is None or call.caller is None for call in gaps)
    return not is_left_out and not any(call.is_random and call.caller is None for call in step.calls.values())


def find_obstacle(reference: Run, candidate: Run) -> str | None:
    """Why two steps cannot be compared by truth; None if they can."""
    try:
        for run in (reference, candidate):
            rank = run.rank
            check_replayable(rank)
            if not tells_tensors_apart(rank):
                return (
                    f"{rank.folder} does not say which tensors are the same: it was written by another tool, or by an "
                    "older version"
                )
            layer = find_untold_layer(run.calls)
            if layer is not None:
                return (
                    f"{rank.folder} does not say which calls {layer} is made of: record it again with this version, "
                    "with filter_data=False"
                )
        find_device("cpu")
    except (DumpError, UsageError) as error:
        return str(error)
    return None
