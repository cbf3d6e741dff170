"""What a comparison found: values, calls, ranks, verdict. Text, CSV, XLSX and JSON only lay this out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.noise import SILENCE, Noise
from tensorprobe.compare.shelf import ShelvedCalls
from tensorprobe.compare.tally import Tally
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean_lines
from tensorprobe.run.call import Call
from tensorprobe.store.slot import Slot, TensorSlot

if TYPE_CHECKING:  # row.py builds on this file
    from tensorprobe.compare.row import Row

Status = Literal["equal", "close", "different", "not comparable"]
Role = Literal["clean", "source", "entered", "drift", "discontinuity", "propagated", "not compared"]
VerdictKind = Literal[
    "agree",
    "unequal start",
    "source",
    "entered",
    "framework",
    "discontinuity",
    "random",
    "drift",
    "missing",
    "incomplete",
    "unrelated",
    "not compared",
]
NO_ANSWER: tuple[VerdictKind, ...] = ("incomplete", "unrelated", "not compared")
"""Neither that the runs agree nor that they differ."""

STATUSES: tuple[Status, ...] = ("equal", "close", "different", "not comparable")
ROLES: tuple[Role, ...] = ("source", "entered", "drift", "discontinuity", "propagated", "clean", "not compared")


@dataclass(slots=True)
class ValuePair:
    """One slot of a call against its counterpart: two tensors, or two plain arguments."""

    reference: Slot | None
    candidate: Slot | None
    status: Status
    measurement: Measurement | None
    """None for plain arguments."""
    error: float | None = None
    """What is held against the tolerance: the largest of the relative errors that this basis has."""
    tolerance: float | None = None
    """The error that the errors of the call's inputs and rounding explain."""
    scale: float = 1.0
    """How many times larger the terms of this value are than their sum: above 1 where they cancel."""
    reason: str = ""
    """Why it has this status, in words, where the numbers do not say it: "shape [2, 3] against [3, 2]"."""
    is_mismatch: bool = False
    """Not comparable, but certainly not the same: another shape, or a tensor on one side only."""
    is_across_frameworks: bool = False
    """The labels of one framework may be int64 and those of the other int32."""

    @property
    def is_bad(self) -> bool:
        return self.status == "different" or self.is_mismatch

    errors: Noise | None = None
    """By norm and at the worst element; `error` is the one that comes closest to its tolerance."""
    tolerances: Noise | None = None
    coarsest: float | None = None
    """The unit roundoff of the coarsest dtype in the runs, where that is known."""

    @property
    def noise(self) -> Noise:
        """Its error, relative to the size of its terms: what the next call inherits.

        Statistics tell only how large each measure is at least: there the larger one stands for both.
        """
        if self.errors is None or self.errors is SILENCE or self.is_bad:
            return SILENCE
        found = self.errors.relative_to(self.scale)
        is_exact = self.measurement is None or self.measurement.basis == "tensor"
        return found if is_exact else Noise(max(found), max(found))

    @property
    def slot(self) -> str:
        """`input.0`, by the reference's name."""
        found = self.reference or self.candidate
        assert found is not None
        return found.slot

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.reference or self.candidate, TensorSlot)

    @property
    def is_input(self) -> bool:
        found = self.reference or self.candidate
        assert found is not None
        return found.is_input


@dataclass(slots=True)
class CallResult:
    """A pair of calls, or of groups of calls, and what is said of it."""

    reference: tuple[Call, ...]
    candidate: tuple[Call, ...]
    rule: str
    values: tuple[ValuePair, ...]
    role: Role
    because: str = ""
    """Why it has this role, in one sentence; empty when clean."""
    reference_location: str | None = None
    """The innermost frame of the call's stack that is not of the framework itself, as the dump has it."""
    candidate_location: str | None = None

    @property
    def name(self) -> str:
        """By the reference's name; a group by its last call, which made the result."""
        return self.reference[-1].name

    @property
    def module_path(self) -> str | None:
        return self.reference[-1].module_path

    @property
    def is_framework_made(self) -> bool:
        return self.reference[-1].caller is not None or self.candidate[-1].caller is not None

    @property
    def status(self) -> Status:
        """The worst of its values'."""
        found = {value.status for value in self.values}
        for status in ("different", "not comparable", "close"):
            if status in found:
                return status
        return "equal"


@dataclass(frozen=True)
class OtherDifference:
    """A difference besides the first one, found by executing both runs again."""

    call: CallResult
    effect: float | None
    """The share of the loss's difference that vanishes when the reference's value is put in its place."""


@dataclass(frozen=True)
class Verdict:
    """The sentence, and what supports it. Plain text: no markup, names from the dump not yet escaped."""

    kind: VerdictKind
    headline: str
    evidence: tuple[str, ...] = ()
    """One line each: inputs, outputs, error against tolerance, source lines, what was not compared before."""
    step: int | None = None
    rank_name: str | None = None
    """`step0/rank3`"""
    call: CallResult | None = None
    """The pair that is named; None when all agree, or when only unpaired calls are to blame."""
    suspects: tuple[Call, ...] = ()
    """Calls without a counterpart that the difference came through."""
    effect: float | None = None
    """The share of the loss's difference that it explains, where the runs were executed again."""
    losses: tuple[float, float] | None = None
    """The loss of the reference and of the candidate without rounding, where the runs were executed again."""
    others: tuple[OtherDifference, ...] = ()
    """What else differs, where the runs were executed again; the first ones matter most."""
    region: tuple[Call, ...] = ()
    """Where several calls of one run stand against one of the other: those calls, in their order."""

    def __str__(self) -> str:
        """What `print` shows: the sentence and its evidence, without the two calls in full."""
        return clean_lines("\n".join((self.headline, *(f"  {line}" for line in self.evidence))))


@dataclass(frozen=True)
class Coverage:
    """How much of the two runs was held against each other. Calls that the framework makes itself do not count."""

    reference_calls: int
    candidate_calls: int
    paired_reference: int
    paired_candidate: int
    compared_values: int
    values: int
    idle_reference: int = 0
    """Calls that need no partner, because they change nothing."""
    idle_candidate: int = 0
    uncompared_values: int = 0
    """Values that both runs recorded, and of which it is not known whether they agree: a file is missing, for example.
    Not among them: what means nothing, such as undefined memory, and what only one run has."""
    unseen_reference: Mapping[str, int] = field(default_factory=dict)
    """What capture could not see, by reason."""
    unseen_candidate: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of all calls of both runs that need one, those that have a partner; 0 when there are none."""
        calls = self.reference_calls + self.candidate_calls - self.idle_reference - self.idle_candidate
        return (self.paired_reference + self.paired_candidate) / calls if calls else 0.0

    @property
    def value_share(self) -> float:
        """Of all values of paired calls that both runs recorded, those that were compared; 1 when there are none."""
        values = self.compared_values + self.uncompared_values
        return self.compared_values / values if values else 1.0


@dataclass(frozen=True)
class RankResult:
    """One step of one process against its partner."""

    step: int | None
    reference_name: str
    """`step0/rank3`"""
    candidate_name: str
    calls: Sequence[CallResult]
    """In the order of execution. In a large comparison they are read from a file each time they are asked for."""
    only_reference: tuple[Unpaired, ...]
    only_candidate: tuple[Unpaired, ...]
    verdict: Verdict
    others: tuple[CallResult, ...]
    """The sources, entered calls and discontinuities besides the one of the verdict."""
    coverage: Coverage
    bases: Counter[str]
    """How many values were compared by tensor, statistics, checksum or structure only."""
    circumstances: tuple[tuple[str, Any, Any], ...] = ()
    """What differs in run.json: key, reference, candidate."""
    notes: tuple[str, ...] = ()
    """What else of the circumstances of both may make them differ."""
    problems: tuple[str, ...] = ()
    """What is wrong with the dumps: a step that was cut off, lines that cannot be read."""
    is_cut_short: bool = False
    """`first` ended the comparison at the first source: what follows was not compared."""
    truth_errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For each side, how far the results of a call are from their truth, relative to it, by the name of the call; only
    where the step was executed again, and `own_errors` asks for it."""

    @cached_property
    def tally(self) -> Tally:
        return self.calls.tally if isinstance(self.calls, ShelvedCalls) else Tally().count(self.calls)

    @property
    def value_counts(self) -> Counter[str]:
        return self.tally.values

    @property
    def role_counts(self) -> Counter[str]:
        return self.tally.roles


@dataclass(frozen=True, repr=False)
class Comparison:
    """True when the runs agree: nothing differs, and nothing that the results depend on is unknown."""

    reference: str
    candidate: str
    ranks: tuple[RankResult, ...]
    verdict: Verdict
    """The earliest over all steps and ranks."""
    problems: tuple[str, ...] = ()
    """Steps or ranks that only one side has, and the like."""

    def __bool__(self) -> bool:
        return self.verdict.kind == "agree"

    def __repr__(self) -> str:
        """What a prompt shows: the sentence, not the hundred thousand values behind it."""
        return f"<Comparison of {self.reference!r} and {self.candidate!r}: {self.verdict.headline!r}>"

    def __str__(self) -> str:
        """What `print` shows: the verdict, what it rests on, and how much was compared."""
        lines = [str(self.verdict)]
        for rank in self.ranks:
            counts, covered = rank.value_counts, rank.coverage
            values = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if counts[status])
            calls = f"{covered.paired_reference:,} of {covered.reference_calls:,} calls paired"
            lines.append(f"  {rank.reference_name}: {calls}; values: {values or 'none'}")
        return clean_lines("\n".join([*lines, *(f"  {problem}" for problem in self.problems)]))

    def _repr_html_(self) -> str | None:
        """What a notebook shows, where jinja2 is installed."""
        from tensorprobe.compare.notebook import render_comparison

        return render_comparison(self)

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self.ranks)

    @property
    def rows(self) -> list[Row]:
        """Every pair of values and every call without a partner, as a table."""
        from tensorprobe.compare.row import build_rows

        return build_rows(self)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UsageError("to_pandas() needs pandas: pip install pandas. Without it, use .rows") from error
        from tensorprobe.compare.row import COLUMNS, iter_blocks

        rows = (row for block in iter_blocks(self) for row in zip(*block.values(), strict=True))
        return pandas.DataFrame(rows, columns=COLUMNS)
