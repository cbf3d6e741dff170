"""Both steps of a pair of processes, replayed and held against each other by what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tensorprobe.compare.truth.difference import Difference, Explainer
from tensorprobe.compare.truth.leaf import find_replacements
from tensorprobe.compare.truth.observable import Observables, observe
from tensorprobe.compare.truth.precision import PrecisionLoss, find_precision_loss
from tensorprobe.compare.truth.value_index import Counterparts, is_laid_out, is_same
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.replay import check_replayable, find_device, tells_tensors_apart
from tensorprobe.replay.result import Finding, Truth
from tensorprobe.replay.true_step import TrueStep
from tensorprobe.store.reader import RankDump

SIDES = ("reference", "candidate")


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

    @property
    def is_equal(self) -> bool:
        return self.observables.is_equal and (self.second_point is None or self.second_point.is_equal)

    @property
    def starts_unequal(self) -> bool:
        """Is it leaves that differ?"""
        return any(one.leaf is not None for one in self.differences[:1])

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
        return is_same(first, second) or (first.size == second.size and is_laid_out(first, second))

    def confirms(
        self, names: tuple[str, str], slots: Iterable[tuple[str, str, bool]], *, needs_results: bool = True
    ) -> bool:
        """Do two calls that take the same give something else? `slots`: places on both sides, and whether they are
        arguments."""
        first, second = names
        states = [(is_input, self.is_same_value((first, one), (second, two))) for one, two, is_input in slots]
        given = [state for is_input, state in states if is_input]
        has_same_inputs = True in given and False not in given
        is_different = any(state is False for is_input, state in states if not is_input)
        return has_same_inputs and (is_different or not needs_results)

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
            if rank.header.get("level") == "api_dump" or rank.header.get("framework") == "mindspore":
                return f"{rank.folder} is not a dump of PyTorch at L1 or mix"
            check_replayable(rank)
            if not tells_tensors_apart(rank):
                return f"{rank.folder} does not say which tensors are the same: it is another tool's, or an older dump"
        find_device("cpu")
    except (DumpError, UsageError) as error:
        return str(error)
    return None


def judge_by_truth(reference: RankDump, candidate: RankDump) -> Judgement:
    """Replay both, fit their leaves, and hold their observables against each other at two points."""
    from tensorprobe.compare.truth.replaying import Replaying

    replaying = {SIDES[0]: Replaying(reference), SIDES[1]: Replaying(candidate)}
    steps = {side: one.replay({}) for side, one in replaying.items()}
    counterparts = Counterparts(**steps)
    replacements = find_replacements(counterparts)
    if any(replacements.values()):
        steps = {side: one.replay(replacements[side]) for side, one in replaying.items()}
        counterparts = Counterparts(**steps)
    observed = observe(counterparts)
    found = Judgement(observed, steps, replaced={side: len(one) for side, one in replacements.items()})
    if not observed.is_equal:
        found.differences = Explainer(counterparts).explain(observed)
        return found
    moved = {side: one.replay(replacements[side], is_shaken=True) for side, one in replaying.items()}
    counterparts = Counterparts(**moved)
    second = observe(counterparts)
    if second.is_finite:
        found.second_point = second
        if not second.is_equal:
            found.differences = Explainer(counterparts).explain(second)
            return found
    found.truths = {side: one.find_truth() for side, one in replaying.items()}
    found.precision_loss = find_precision_loss(Counterparts(**steps), found.truths)
    return found
