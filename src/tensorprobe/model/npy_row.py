"""What two folders of .npy files have in common: a row for each pair of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

Status = Literal["close", "different", "not comparable"]
Shape = tuple[int, ...]

OTHER_SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class NpyRow:
    """One pair of files, or one file without a partner. Numbers are None where there is nothing to measure."""

    reference_name: str | None
    candidate_name: str | None
    status: Status
    reference_shape: Shape | None = None
    candidate_shape: Shape | None = None
    allclose: bool | None = None
    allclose_share: float | None = None
    cosine: float | None = None
    """NaN when NaN or Inf of one side leave none."""
    mean_abs_error: float | None = None
    max_abs_error: float | None = None
    relative_l2: float | None = None
    """The Euclidean distance over the larger of the two norms."""
    passes_by_atol: bool = False
    """allclose, but only because atol is larger than the values: of their own size they are far apart."""
    reference_problem: str | None = None
    """Why this side cannot be read: "is cut off"."""
    candidate_problem: str | None = None
    problem: str | None = None
    """Why the two cannot be compared although both can be read; OTHER_SHAPE for their shapes."""

    @property
    def is_unreadable(self) -> bool:
        return bool(self.reference_problem or self.candidate_problem or self.problem not in (None, OTHER_SHAPE))


class NpyDirComparison(Sequence[NpyRow]):
    """The rows of a comparison; true when every file has a partner and all pairs are close."""

    def __init__(self, reference: str, candidate: str, rows: Sequence[NpyRow]) -> None:
        self.reference = reference
        self.candidate = candidate
        self.rows = tuple(rows)

    def __bool__(self) -> bool:
        return all(row.status == "close" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> NpyRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NpyRow]: ...
    def __getitem__(self, index: int | slice) -> NpyRow | Sequence[NpyRow]:
        return self.rows[index]

    def __repr__(self) -> str:
        counts = {status: sum(row.status == status for row in self.rows) for status in ("close", "different")}
        others = len(self) - sum(counts.values())
        words = f"{counts['close']} close, {counts['different']} different, {others} not comparable"
        return f"<NpyDirComparison of {len(self)} pairs: {words}>"
