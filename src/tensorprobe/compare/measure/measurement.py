"""The numbers of one pair of tensors. One spelling per metric: the key here, the column, the key in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["tensor", "statistics", "checksum", "structure"]
"""By what the pair was compared: what both sides have, the first of these."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class Measurement:
    """None: not known on this basis, or not defined for these values."""

    basis: Basis
    is_equal: bool | None = None
    """Bit for bit (on checksums: their equality; on statistics: all four equal)."""
    problem: str | None = None
    """Why there are no numbers: "shape [2, 3] against [3, 2]", "x.pt is missing", "x.pt is cut off"."""
    is_other_shape: bool = False
    """The one problem that is a difference by itself."""
    fallback: str | None = None
    """Why the tensors themselves were not compared, although both were saved: the numbers are those of the records."""
    element_count: int | None = None
    cosine: float | None = None
    """Of two all-zero tensors 1, of one 0."""
    euclidean_distance: float | None = None
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_relative_error: float | None = None
    """The largest |reference - candidate| / |reference|."""
    relative_l2: float | None = None
    """The Euclidean distance over the larger of the two norms."""
    relative_max: float | None = None
    """The largest absolute error over the largest magnitude of both."""
    within_1e_3: float | None = None
    """The share of elements whose relative error is below 1e-3."""
    within_5e_3: float | None = None
    allclose: bool | None = None
    allclose_share: float | None = None
    max_ulp: int | None = None
    """The largest distance in units of the last place of the less precise dtype."""
    nan_only_reference: int | None = None
    nan_only_candidate: int | None = None
    inf_only_reference: int | None = None
    """Elements that are infinite here and not there, or infinite with the other sign."""
    inf_only_candidate: int | None = None
    nan_both: int | None = None
    """Elements that are NaN on both sides, and so agree."""
    worst_index: tuple[int, ...] | None = None
    """Where the absolute error is largest; a NaN or Inf of one side counts as the largest of all."""
    worst_reference: float | complex | int | bool | None = None
    worst_candidate: float | complex | int | bool | None = None
    norm_reference: float | None = None
    norm_candidate: float | None = None

    @property
    def has_one_sided_nonfinite(self) -> bool:
        """Is an element NaN, or infinite, on one side only?"""
        return bool(
            self.nan_only_reference or self.nan_only_candidate or self.inf_only_reference or self.inf_only_candidate
        )


def other_shape(basis: Basis, reference: tuple[int, ...] | None, candidate: tuple[int, ...] | None) -> Measurement:
    """Of two tensors that cannot be laid on each other."""
    shapes = ["unknown" if shape is None else str(list(shape)) for shape in (reference, candidate)]
    return Measurement(basis, problem=f"shape {shapes[0]} against {shapes[1]}", is_other_shape=True)
