"""Weights and data of one run that the other has in a coarser precision: rounded likewise, they are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tensorprobe.compare.layout.part import locate
from tensorprobe.compare.layout.pool import Known, Steps
from tensorprobe.replay.true_step import UNITS, Array, LeafKey, TrueValue
from tensorprobe.store.tensor_layout import numpy_dtype

_EXACT = 1e-12
Rounded = dict[int, dict[LeafKey, Array]]
"""What leaves of each rank are when they are rounded."""


def find_rounded(finer: Steps, coarser: Steps) -> Rounded:
    """The leaves of one side of which the other has a copy that is rounded, whole or in parts."""
    copies = [
        value
        for one in coarser.values()
        for value in one.step.values
        if (value.is_leaf or value.parameter is not None) and value.is_floating and value.array.size > 1
    ]
    found: Rounded = {}
    for rank, one in finer.items():
        for leaf in one.step.leaves:
            if leaf.key is not None and leaf.is_floating and leaf.array.size > 1:
                rounded = _find_copy(leaf, copies)
                if rounded is not None:
                    found.setdefault(rank, {})[leaf.key] = rounded
    return found


def _find_copy(leaf: TrueValue, copies: Sequence[TrueValue]) -> Array | None:
    """Rather that of its name."""
    unit = UNITS.get(leaf.dtype, 0.0)
    coarser = [copy for copy in copies if UNITS.get(copy.dtype, 0.0) > unit]
    known: dict[str, Known] = {}
    for copy in sorted(coarser, key=lambda copy: copy.parameter is None or copy.parameter != leaf.parameter):
        if copy.dtype not in known:
            known[copy.dtype] = Known(round_array(leaf.array, copy.dtype), (), None, leaf.slot)
        rounded = known[copy.dtype]
        if np.array_equal(rounded.array, leaf.array):
            continue
        if rounded.may_contain(copy.array, _EXACT) and locate(copy.array, rounded.array, _EXACT) is not None:
            return rounded.array
        whole = Known(copy.array, (), None, copy.slot)
        if whole.may_contain(rounded.array, _EXACT) and locate(rounded.array, copy.array, _EXACT) is not None:
            return rounded.array
    return None


def round_array(array: Array, dtype: str) -> Array:
    """The nearest numbers that a dtype has."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)


def count_rounded(rounded: Mapping[int, Mapping[LeafKey, Array]]) -> int:
    return len({key for leaves in rounded.values() for key in leaves})
