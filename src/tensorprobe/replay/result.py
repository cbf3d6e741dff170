"""What a replay says of a run, as plain data: no framework is needed to read it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tensorprobe.foreign_text import clean_lines
from tensorprobe.model.count import count_noun
from tensorprobe.model.name import PARAMETERS_GRAD

BACKWARD_PASS = "backward_pass."
"""How the names of backward passes begin: without modules the gradients of parameters stand there."""
_ZERO = 1e-6
"""A gradient that is smaller than this part of the largest one is taken for zero."""

Kind = Literal["kernel", "overflow", "derivative", "sum", "write", "replica"]


def is_leaf_record(record: str) -> bool:
    """Does it hold the gradients of parameters, or of other leaves?"""
    return record.endswith(PARAMETERS_GRAD) or record.startswith(BACKWARD_PASS)


@dataclass(frozen=True, slots=True)
class Error:
    """One tensor against its truth."""

    norm: float
    """Of the difference."""
    true_norm: float
    worst: float
    """The largest difference of one element."""
    worst_index: tuple[int, ...]
    recorded_worst: float
    """What was recorded there."""
    true_worst: float
    overflow_count: int
    """Elements that are infinite or NaN, where the truth is a number."""
    underflow_count: int
    """Elements that are zero or subnormal, where the truth is a number that is not."""

    @property
    def relative(self) -> float:
        """The norm of the difference, relative to the norm of the truth."""
        return self.norm / self.true_norm if self.true_norm else (0.0 if not self.norm else float("inf"))

    @property
    def is_exact(self) -> bool:
        return self.worst == 0 and self.overflow_count == 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """An error and what it is held against."""

    units: float
    """The largest error of an element, in units of what rounding does to it."""
    index: tuple[int, ...]
    recorded: float
    true: float
    allowed_units: float = 0.0
    """So many are explained."""
    factor: float | None = None
    """All elements together are so many times what they should be, which no rounding of single ones does."""

    @property
    def is_explained(self) -> bool:
        return self.units <= self.allowed_units and self.factor is None


@dataclass(frozen=True)
class Decision:
    """A choice, a mask or an index that comes out otherwise than recorded."""

    count: int
    """Of elements that differ."""
    total: int
    margin: float | None
    """How far the chosen values lie from those that would be chosen, at most; None where that is not known."""
    error: float | None = None
    """How far what was compared was from its truth, at most."""

    @property
    def is_explained(self) -> bool:
        """May rounding have made the choice, as far as one knows? Both of two values may be off."""
        return self.margin is None or self.error is None or self.margin <= 2 * self.error


@dataclass
class Coverage:
    """What was replayed, and what was not."""

    call_count: int = 0
    replayed: int = 0
    random: int = 0
    """Calls whose results were drawn: they are those recorded."""
    gaps: dict[str, str] = field(default_factory=dict)
    """The calls that could not be replayed, and why: their results are those recorded."""
    without_meaning: dict[str, str] = field(default_factory=dict)
    """What was called in gaps that a meaning would close, `Autograd.MyKernel`, and the first such call."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    """Calls that decided otherwise: the program goes on with what was recorded."""
    own_backwards: dict[str, dict[str, float]] = field(default_factory=dict)
    """Autograd Functions whose backward is not the derivative of the calls inside: how exact is what stands for the
    gradient of each input? The size of its rounding; 0 where it is exact."""
    ranks: tuple[int, ...] = ()
    """The ranks that were replayed together."""
    remarks: list[str] = field(default_factory=list)
    """What these ranks could not do together."""


@dataclass
class BitReport:
    """Whether a replay in the recorded precision gave the recorded values."""

    name: str
    """`step0/rank3`"""
    equal_count: int = 0
    different: list[tuple[str, str]] = field(default_factory=list)
    """The values that came out otherwise: record and place."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """Those of which neither a file nor statistics were recorded."""
    coverage: Coverage = field(default_factory=Coverage)

    def __bool__(self) -> bool:
        return not self.different

    @property
    def value_count(self) -> int:
        """How many values could be held against what was recorded."""
        return self.equal_count + len(self.different)


@dataclass(frozen=True)
class ReplayOptions:
    """How a step is to be executed again."""

    dtype: Literal["float64", "recorded"] = "float64"
    device: str = "cpu"
    until: str | None = None
    """The last record that is wanted."""
    output: Path | None = None
    """Where the dump goes that has what comes out."""
    memory: float | None = None
    """How many GiB it may take; None for what is available, if the dump's size explains it."""


@dataclass(frozen=True)
class Execution:
    """One step of one process was executed again."""

    name: str
    """`step0/rank3`"""
    coverage: Coverage
    bits: BitReport | None
    """In the recorded precision: did it give the recorded values?"""
    folder: Path | None
    """Where they were written."""


@dataclass(frozen=True)
class Finding:
    """Something that rounding does not explain."""

    kind: Kind
    record: str
    slot: str
    judgement: Judgement | None = None
    count: int = 0
    """Of elements, where they are counted."""
    other: str = ""
    """Of a sum, the records whose gradients should add up; of a write, the record that saw the value before; of a
    kernel or its derivative, the meaning it was held against, where that is not the function of its name; of a replica
    that drifted, what is said of it."""


@dataclass
class CallTruth:
    """One recorded tensor, a result or a gradient, against its truth."""

    record: str
    slot: str
    dtype: str
    accumulated: Error | None = None
    own: Judgement | None = None
    effect: float | None = None
    """What the call's own error does to the loss, to first order."""

    @property
    def is_parameter_gradient(self) -> bool:
        """Of a parameter, or of another leaf."""
        return is_leaf_record(self.record)

    def share_of(self, largest: float) -> float:
        """The accumulated error, relative to its truth, or to the largest gradient where its truth is zero beside it:
        then all that is recorded is rounding."""
        error = self.accumulated
        if error is None:
            return 0.0
        scale = error.true_norm if error.true_norm > _ZERO * largest else largest
        return error.norm / scale if scale else 0.0


@dataclass
class Truth:
    """What a replay says of one step of one process."""

    name: str
    """`step0/rank3`"""
    coverage: Coverage
    rows: list[CallTruth]
    findings: list[Finding]
    losses: list[tuple[str, float, float]]
    """The values from which gradients were asked for: record, recorded, true."""
    not_judged: dict[str, str] = field(default_factory=dict)
    """Calls that could not be replayed alone, and why."""
    locations: dict[str, str] = field(default_factory=dict)
    """The source lines of the calls that are worth a look."""

    @property
    def parameter_gradients(self) -> list[CallTruth]:
        """Those of the parameters, the least true first."""
        found = [row for row in self.rows if row.is_parameter_gradient and row.accumulated is not None]
        return sorted(found, key=lambda row: row.share_of(self.largest_gradient), reverse=True)

    @property
    def largest_gradient(self) -> float:
        """The norm of the largest gradient of a parameter: one that is zero in exact arithmetic is held against it."""
        found = [row.accumulated for row in self.rows if row.is_parameter_gradient]
        return max((error.true_norm for error in found if error is not None), default=0.0)

    @property
    def worst_error(self) -> float:
        """Of the loss and the gradients of parameters, relative to their truth; infinite where there are none."""
        losses = [abs(recorded - true) / abs(true) for _, recorded, true in self.losses if true]
        gradients = [row.share_of(self.largest_gradient) for row in self.parameter_gradients]
        return max([*losses, *gradients], default=math.inf)

    @property
    def unchecked(self) -> dict[str, str]:
        """The calls of which nothing can be said, and why."""
        return {**self.coverage.gaps, **self.not_judged}

    @property
    def is_checked(self) -> bool:
        """Could anything be said at all?"""
        return len(self.unchecked) < self.coverage.call_count

    def __repr__(self) -> str:
        """What a notebook shows: not every value."""
        findings = count_noun(len(self.findings), "finding")
        return f"<Truth of {self.name}: {findings}, {count_noun(len(self.rows), 'value')}>"

    def __str__(self) -> str:
        """What `print` shows: what `tensorprobe truth` says of it."""
        from tensorprobe.replay.truth_summary import summarize_truth  # which is built on this file

        told = summarize_truth(self)
        wrong = [line.strip() for finding in told.findings for line in finding.split("\n")]
        said = (*wrong, *told.observables, *told.contributions, *told.decisions, *told.coverage)
        return clean_lines("\n  ".join([told.headline, *said]))

    def __bool__(self) -> bool:
        """Is nothing wrong, as far as it could be checked?"""
        return not self.findings and self.is_checked
