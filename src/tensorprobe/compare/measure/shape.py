"""Shapes of the same elements in the same order."""

from __future__ import annotations

import math
from itertools import accumulate
from operator import mul

from tensorprobe.store.slot import TensorSlot

Shape = tuple[int, ...] | None


def is_laid_out_alike(reference: Shape, candidate: Shape) -> bool:
    """Is one shape the other with dimensions joined or split, or with more of size 1? A transposed one is not.

    >>> is_laid_out_alike((3, 12, 32), (36, 32)), is_laid_out_alike((3, 4), (4, 3))
    (True, False)
    """
    if reference is None or candidate is None or math.prod(reference) != math.prod(candidate):
        return False
    ends, other_ends = _ends(reference), _ends(candidate)
    return ends <= other_ends or other_ends <= ends


def has_same_layout(reference: TensorSlot, candidate: TensorSlot) -> bool:
    """One framework works on rows where the other keeps all dimensions: the numbers and their order are the same.

    A Conv1d of MindSpore keeps its weight as that of a Conv2d, with a dimension of 1 more.
    """
    if reference.shape == candidate.shape:
        return True
    is_across = reference.type.partition(".")[0] != candidate.type.partition(".")[0]
    return is_across and is_laid_out_alike(reference.shape, candidate.shape)


def _ends(shape: tuple[int, ...]) -> set[int]:
    """How many elements each dimension and those before it have; the last number is that of all."""
    return {1, *accumulate(shape, mul)}
