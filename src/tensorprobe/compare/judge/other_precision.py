"""Is one run in another precision than the other as a whole, as in bfloat16 against float32?

Products of matrices are what a precision is chosen for: by the dtype of the weights, by autocast, by casts that a
framework puts in. Where most of them have another dtype, that is how the candidate was meant to run, and no difference
by itself. A cast of single calls is one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import FORWARD
from tensorprobe.run.step import Run
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a

_MOST = 0.9
_LEAST = 2
"""One product alone may be a cast that was left out, or put in."""
_REAL = frozenset(("float64", "float32", "float16", "bfloat16"))


@dataclass(frozen=True)
class OtherPrecision:
    """What most products are computed in."""

    reference: str
    candidate: str

    @property
    def unit(self) -> float:
        """The rounding of the coarser one."""
        return max(unit_roundoff(dtype) or 0.0 for dtype in (self.reference, self.candidate))

    def __str__(self) -> str:
        return f"the candidate computes in {self.candidate}, and the reference in {self.reference}"


def find_other_precision(reference: Run, candidate: Run) -> OtherPrecision | None:
    """None where both have the same, or nothing is known of it."""
    dtypes = [_find_usual_dtype(run) for run in (reference, candidate)]
    return OtherPrecision(*dtypes) if dtypes[0] != dtypes[1] and all(dtypes) else None


def _find_usual_dtype(run: Run) -> str:
    calls = (call for call in run.calls if call.direction == FORWARD and call.caller is None)
    products = [call for call in calls if is_a(word_of(call), "contraction")]
    counts = Counter(
        short_dtype(slot.dtype)
        for call in products
        for slot in call.tensors
        if not slot.is_input and short_dtype(slot.dtype) in _REAL
    )
    usual, count = next(iter(counts.most_common(1)), ("", 0))
    return usual if count >= max(_LEAST, _MOST * counts.total()) else ""
