"""How many elements a call gives, and lays out anew on its way, told by its arguments alone.

Most steps are made of these calls. torch could tell, too, but would load its compiler or its symbolic shapes for that,
which takes as long as all else that is done for a small step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

_NOT_TAKEN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What arguments raise that torch does not take either, or in another form than here."""


@dataclass(frozen=True)
class ResultCount:
    """Elements."""

    made: int
    """Of the results."""
    way: int = 0
    """Of copies of what is given."""


def count_results(
    op: str, tensors: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ResultCount | None:
    """None for calls that are not known here. `tensors`: those among the arguments, in their order."""
    if op.startswith("_foreach_") and op.endswith("_"):  # what is written to does not grow
        return ResultCount(0)
    try:
        if op in _OF_TENSORS:
            return _OF_TENSORS[op](tensors)
        return _OF_ARGUMENTS[op](*args, **kwargs) if op in _OF_ARGUMENTS else None
    except _NOT_TAKEN:
        return None


def _count_joined(tensors: Sequence[torch.Tensor]) -> ResultCount:
    return ResultCount(sum(int(tensor.numel()) for tensor in tensors))


def _count_linear(tensors: Sequence[torch.Tensor]) -> ResultCount | None:
    values, weight, *_ = tensors
    if weight.dim() != 2 or not weight.numel():
        return None
    rows, columns = map(int, weight.shape)
    return ResultCount(int(values.numel()) // columns * rows)


def _count_embedding(tensors: Sequence[torch.Tensor]) -> ResultCount:
    """The table comes second in a function of `torch.nn.functional`, and first in that of `torch`."""
    places, table = sorted(tensors, key=lambda tensor: tensor.is_floating_point())
    return ResultCount(int(places.numel()) * int(table.size(1)))


def _count_products(tensors: Sequence[torch.Tensor]) -> ResultCount:
    """What is repeated for each of a batch is laid out anew."""
    first, second = tensors
    batch = math.prod(np.broadcast_shapes(first.shape[:-2], second.shape[:-2]))
    rows = int(first.size(-2)) if first.dim() > 1 else 1
    columns = int(second.size(-1)) if second.dim() > 1 else 1
    return ResultCount(batch * rows * columns, batch * int(first.size(-1)) * (rows + columns))


def _count_broadcast(tensors: Sequence[torch.Tensor]) -> ResultCount:
    return ResultCount(math.prod(np.broadcast_shapes(*(tensor.shape for tensor in tensors))))


def _count_sorted(tensors: Sequence[torch.Tensor]) -> ResultCount:
    (values,) = tensors
    return ResultCount(int(values.numel()), int(values.numel()))


def _count_outer(tensors: Sequence[torch.Tensor]) -> ResultCount:
    return ResultCount(math.prod(int(tensor.numel()) for tensor in tensors))


def _count_convolved(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: object = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> ResultCount:
    ndim = weight.dim() - 2
    batch = int(values.size(0)) if values.dim() > ndim + 1 else 1
    places = _count_places(values, weight.shape[-ndim:], stride, padding, dilation)
    return ResultCount(batch * int(weight.size(0)) * places)


def _count_unfolded(
    values: torch.Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> ResultCount:
    widths = _repeat(kernel_size, 2)
    places = _count_places(values, widths, stride, padding, dilation)
    return ResultCount(math.prod(values.shape[:-2]) * math.prod(widths) * places)


def _count_places(values: torch.Tensor, widths: Sequence[int], stride: Any, padding: Any, dilation: Any) -> int:
    """Where a window of these widths may be."""
    settings = (_repeat(setting, len(widths)) for setting in (stride, padding, dilation))
    lengths = zip(values.shape[-len(widths) :], widths, *settings, strict=True)
    return math.prod(
        (length + 2 * pad - spacing * (width - 1) - 1) // step + 1 for length, width, step, pad, spacing in lengths
    )


def _repeat(setting: Any, ndim: int) -> Sequence[int]:
    return [setting] * ndim if isinstance(setting, int) else [*setting] * (ndim if len(setting) == 1 else 1)


def _count_contracted(equation: str, first: torch.Tensor, second: torch.Tensor) -> ResultCount | None:
    """Two tensors are multiplied as matrices, once what is in one of them alone and not wanted is summed."""
    given, arrow, wanted = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        return None
    letters = given.split(",")
    sizes: dict[str, int] = {}
    for word, tensor in zip(letters, (first, second), strict=True):
        for letter, size in zip(word, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return ResultCount(math.prod(sizes[letter] for letter in wanted), int(first.numel() + second.numel()))


def _count_indexed(values: torch.Tensor, index: Any) -> ResultCount | None:
    """What an index shows: a part of the dimensions that slices look at, for each of the places that tensors say."""
    items = index if isinstance(index, tuple) else (index,)
    if not all(_is_place(item) for item in items):
        return None
    left = values.dim() - sum(_count_dimensions(item) for item in items)
    sizes = iter(values.shape)
    shown, places = 1, list[Sequence[int]]()
    for item in items:
        given = list(islice(sizes, left if item is Ellipsis else _count_dimensions(item)))
        if item is Ellipsis:
            shown *= math.prod(given)
        elif isinstance(item, slice):
            shown *= len(range(given[0])[item])
        elif isinstance(item, torch.Tensor):
            places.append([int(item.count_nonzero())] if item.dtype is torch.bool else item.shape)
    return ResultCount(shown * math.prod(sizes) * math.prod(np.broadcast_shapes(*places)))


def _count_written(values: torch.Tensor, index: Any, content: object) -> ResultCount | None:
    shown = _count_indexed(values, index)
    return None if shown is None else ResultCount(0, shown.made)


def _count_repeated(values: torch.Tensor, *repeats: Any) -> ResultCount:
    numbers = repeats[0] if len(repeats) == 1 and not isinstance(repeats[0], int) else repeats
    return ResultCount(int(values.numel()) * math.prod(map(int, numbers)))


def _count_classes(values: torch.Tensor, num_classes: int = -1) -> ResultCount:
    return ResultCount(int(values.numel()) * (num_classes if num_classes >= 0 else int(values.max()) + 1))


def _count_differences(
    values: torch.Tensor, *, dim: int = -1, prepend: torch.Tensor | None = None, append: torch.Tensor | None = None
) -> ResultCount:
    given = [one for one in (prepend, values, append) if one is not None]
    count = sum(int(one.numel()) for one in given)
    return ResultCount(count - count // sum(one.size(dim) for one in given), count)


def _is_place(item: Any) -> bool:
    if isinstance(item, torch.Tensor):
        return item.dtype in (torch.int64, torch.int32) or (item.dtype is torch.bool and item.dim() > 0)
    return item is None or item is Ellipsis or (isinstance(item, int | slice) and not isinstance(item, bool))


def _count_dimensions(item: Any) -> int:
    """So many dimensions does a part of an index take the place of."""
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype is torch.bool else 1


def _count_steps(
    *ends: float, step: float = 1, dtype: object = None, device: object = None, **named: float
) -> ResultCount | None:
    """`arange` takes an end, or a start and an end, or a step, too; or both ends by their names."""
    if ends and named:
        return None
    ends = ends or (named.get("start", 0), named["end"])
    start, end, step = {1: (0, *ends, step), 2: (*ends, step), 3: ends}[len(ends)]
    return ResultCount(max(0, math.ceil((end - start) / step)))


_OF_TENSORS: dict[str, Callable[[Sequence[torch.Tensor]], ResultCount | None]] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack"), _count_joined),
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm"), _count_products),
    "argsort": _count_sorted,
    "embedding": _count_embedding,
    "linear": _count_linear,
    "outer": _count_outer,
    "polar": _count_broadcast,
}
_OF_ARGUMENTS: dict[str, Callable[..., ResultCount | None]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _count_convolved),
    "__getitem__": _count_indexed,
    "__setitem__": _count_written,
    "arange": _count_steps,
    "diff": _count_differences,
    "einsum": _count_contracted,
    "one_hot": _count_classes,
    "repeat": _count_repeated,
    "unfold": _count_unfolded,
}
