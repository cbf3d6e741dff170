"""How much memory a recorded call will take, known before it is made. A dump may come from anyone: `zeros(10**12)` in
it is a line of text, and so is a call whose result is small and whose way there is not.

A call is first made on torch's `meta` device, where tensors have shapes and no content, and everything that it would
allocate on its way is added up. Calls that cannot take more than their arguments do are not tried first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.capture.torch.function import OPERATORS, PLAIN, VIEWS, base_op
from tensorprobe.replay.content_guard import check_content
from tensorprobe.replay.program import Operation
from tensorprobe.replay.result_count import ResultCount, count_results

_ELEMENT_BYTES = 16
"""Of the widest dtype, complex128."""
_HARMLESS_NUMBER = 1 << 16
_LARGEST_NUMBERS = {
    **dict.fromkeys(("pool", "conv", "fold", "im2col", "col2im"), 1 << 24),
    **dict.fromkeys(("matrix_power", "mvlgamma", "multigammaln"), _HARMLESS_NUMBER),
}
"""Kernels that take as many steps as an argument says, by words in their names: through a window that lies outside of
the tensor, or through terms."""


class TooLargeError(Exception):
    """A call would take more memory than it may. The message is for the user as it stands."""


class Allocation:
    """Says no to calls that would take more than so many bytes."""

    def __init__(self, limit_bytes: int, checked: set[Any] | None = None) -> None:
        """`checked`: what was found by others to take no more."""
        self.limit_bytes = limit_bytes
        self._checked: set[Any] = set() if checked is None else checked
        self._tried: set[Any] = set()
        """Calls of other layers, of the same shapes."""

    def check(
        self, operation: Operation, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """TooLargeError if the call would take too much, or more than was recorded of its results."""
        op = base_op(operation.prefix, operation.op)
        tensors = list(iter_tensors((args, kwargs)))
        key = (operation.name, *(tensor.shape for tensor in tensors))
        if key in self._checked:  # the same call once more, on other numbers
            return
        self._check_ends(operation, tensors)
        check_steps(op, args, kwargs)
        check_content(op, args, kwargs)
        count = count_results(op, tensors, args, kwargs)
        bound = bound_plain(op, tensors, count) if not _is_fused_attention(op, args, kwargs) else 0
        is_more = count is not None and count.made > sum(leaf.element_count for leaf in operation.outputs)
        if bound is None or bound * _ELEMENT_BYTES > self.limit_bytes or is_more:
            self._check_by_trial(operation, op, function, args, kwargs)
        self._checked.add(key)

    def _check_ends(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        self.check_bytes(sum(tensor.numel() * tensor.element_size() for tensor in tensors), "it is given")
        self.check_bytes(8 * sum(leaf.element_count for leaf in operation.outputs), "its results take")

    def check_kernel(
        self, operation: Operation, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """The same for a meaning, which may look at the numbers that are given as tensors, such as lengths."""
        self._check_ends(operation, list(iter_tensors((args, kwargs))))
        for keeps_numbers in (True, False):
            try:
                self._try(function, to_meta(args, keeps_numbers), to_meta(kwargs, keeps_numbers))
                return
            except TooLargeError:
                raise
            except Exception:  # a meaning is somebody's function, and need not know the meta device
                continue

    def check_bytes(self, count: int, what: str = "it takes") -> None:
        if count > self.limit_bytes:
            raise TooLargeError(
                f"{what} {count / 2**30:,.1f} GiB, and {self.limit_bytes / 2**30:,.1f} GiB are the limit (--memory)"
            )

    def _check_by_trial(
        self,
        operation: Operation,
        op: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        by_content = _BY_CONTENT.get(op)
        if by_content is not None:
            self.check_bytes(by_content(*args, **kwargs) * _ELEMENT_BYTES)
        recorded = sum(leaf.element_count for leaf in operation.outputs)
        key = (function, recorded, _freeze(args), _freeze(kwargs))
        if key in self._tried:
            return
        try:
            output = self._try(function, to_meta(args), to_meta(kwargs))
        except TooLargeError:
            raise
        except Exception:  # what torch says to its arguments, it says again when the call is made
            if by_content is None:
                self._guess(recorded, args, kwargs)
            return
        found = sum(tensor.numel() for tensor in iter_tensors(output))
        if found > recorded:
            raise TooLargeError(f"it gives {found:,} elements, and {recorded:,} were recorded")
        self._tried.add(key)

    def _try(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with torch.no_grad(), torch.device("meta"), _Counter(self):
            return function(*args, **kwargs)

    def _guess(self, recorded: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """What torch cannot try: as if every number among the arguments were the length of a dimension."""
        numbers = math.prod(max(1, abs(int(number))) for number in iter_numbers((args, kwargs)))
        if numbers > max(recorded, _HARMLESS_NUMBER):
            largest = max((tensor.numel() for tensor in iter_tensors((args, kwargs))), default=1)
            self.check_bytes(numbers * max(1, largest) * _ELEMENT_BYTES, "it may take")


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator. Nothing is compiled here, and to make sure of that torch would load its compiler, which
    takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Counter(DispatchMode):
    """Adds up what a call on the meta device would allocate. What only looks at memory counts once it is used."""

    def __init__(self, allocation: Allocation) -> None:
        super().__init__()
        self._allocation = allocation
        self.total_bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _takes_device(function):
            kwargs["device"] = torch.device("meta")
        output = function(*args, **kwargs)
        if getattr(function, "is_view", False):
            return output
        self.total_bytes += sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(output))
        self._allocation.check_bytes(self.total_bytes)
        return output


@cache
def _takes_device(operator: Any) -> bool:
    """Could it make a tensor on a real device?"""
    schema = getattr(operator, "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def bound_plain(op: str, tensors: Sequence[torch.Tensor], count: ResultCount | None) -> int | None:
    """At most so many elements does a call allocate that computes element by element or sums, or whose results are
    counted; None for others. Most steps are made of these, and none of them needs torch's compiler to be tried."""
    if op in VIEWS:
        return 0
    if count is not None:
        return 2 * (count.made + count.way + sum(int(tensor.numel()) for tensor in tensors))
    name = op.strip("_")
    if op not in PLAIN and op not in OPERATORS and not _is_pointwise(name if op.startswith("__") else op.rstrip("_")):
        return None
    counts: list[int] = sorted((tensor.numel() for tensor in tensors), reverse=True)
    rough = counts[0] * max(1, counts[1]) if len(counts) > 1 else sum(counts)
    if rough * _ELEMENT_BYTES <= 1 << 28 or len(counts) < 2:
        return 4 * rough
    try:
        return 4 * int(math.prod(np.broadcast_shapes(*(tensor.shape for tensor in tensors))))
    except ValueError:
        return None


@cache
def _is_pointwise(name: str) -> bool:
    """Does torch say of itself that it computes this element by element?"""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() and not name.startswith("_") else None
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    tags = [getattr(packet, overload).tags for overload in overloads if not overload.endswith(("out", "_"))]
    return any(torch.Tag.pointwise in found for found in tags)


def check_steps(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A kernel that walks through a window of 10**12 is not stopped by a small result."""
    bounds = [bound for word, bound in _LARGEST_NUMBERS.items() if word in op]
    if bounds:
        numbers = iter_numbers((args, kwargs))
        largest = max((abs(number) for number in numbers if isinstance(number, int)), default=0)
        if largest > min(bounds):
            raise TooLargeError(f"it would take as many steps as {largest:,}, a number among its arguments")


def _is_fused_attention(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Attention without all weights in memory, which torch has on real devices only."""
    if op != "scaled_dot_product_attention" or len(args) < 3:
        return False
    query, _, value, *rest = args
    mask = rest[0] if rest else kwargs.get("attn_mask")
    dropout = rest[1] if len(rest) > 1 else kwargs.get("dropout_p", 0.0)
    sizes = {tensor.size(-1) for tensor in (query, value) if isinstance(tensor, torch.Tensor) and tensor.dim() == 4}
    return len(sizes) == 1 and not dropout and not (isinstance(mask, torch.Tensor) and mask.requires_grad)


def _freeze(tree: Any, depth: int = 0) -> Any:
    """All that a call on the meta device depends on, to look it up by; what is not known is like nothing else."""
    if isinstance(tree, torch.Tensor):
        return torch.Tensor, tree.shape, tree.dtype, tree.stride()
    if isinstance(tree, Mapping) and depth < 64:
        return dict, tuple((key, _freeze(item, depth + 1)) for key, item in tree.items())
    if isinstance(tree, list | tuple) and depth < 64:
        return type(tree), tuple(_freeze(item, depth + 1) for item in tree)
    known = bool | int | float | str | torch.dtype | torch.device | None
    return (type(tree), tree) if isinstance(tree, known) else object()


def iter_tensors(tree: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)) and depth < 64:
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from iter_tensors(item, depth + 1)


def iter_numbers(tree: Any, depth: int = 0) -> Iterator[float]:
    """The numbers among arguments, and those of what is shown by slices."""
    if isinstance(tree, (int, float)) and not isinstance(tree, bool) and math.isfinite(tree):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)) and depth < 64:
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from iter_numbers(item, depth + 1)


def to_meta(tree: Any, keeps_numbers: bool = False, depth: int = 0) -> Any:
    """The same arguments without content, on the meta device. `keeps_numbers`: but for integers."""
    if isinstance(tree, torch.Tensor):
        if keeps_numbers and not tree.is_floating_point() and not tree.is_complex():
            return tree
        return torch.empty_strided(tree.shape, tree.stride(), dtype=tree.dtype, device="meta")
    if isinstance(tree, torch.device):
        return torch.device("meta")
    if isinstance(tree, torch.Size):
        return tree
    if isinstance(tree, (list, tuple)) and depth < 64:
        return type(tree)(to_meta(item, keeps_numbers, depth + 1) for item in tree)
    if isinstance(tree, Mapping) and depth < 64:
        return {key: to_meta(item, keeps_numbers, depth + 1) for key, item in tree.items()}
    return tree


# -- calls whose results are as large as their arguments' content says -------------------------------------------------


def _count_bins(values: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    given = kwargs.get("minlength", args[-1] if args and isinstance(args[-1], int) else 0)
    return max(int(given), _largest(values) + 1)


def _count_classes(values: torch.Tensor, num_classes: int = -1) -> int:
    return int(values.numel()) * (num_classes if num_classes >= 0 else _largest(values) + 1)


def _count_repeats(values: torch.Tensor, repeats: Any = None, *args: Any, **kwargs: Any) -> int:
    repeats = kwargs.get("repeats", repeats)
    if repeats is None:
        return int(values.sum()) if values.numel() else 0
    if isinstance(repeats, int):
        return int(values.numel()) * abs(repeats)
    return int(values.numel()) * (int(repeats.max()) if repeats.numel() else 0)


def _count_found(values: Any, *args: Any, **kwargs: Any) -> int:
    """What is chosen by a mask is at most everything, once for each dimension."""
    tensors = list(iter_tensors((values, args, kwargs)))
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return int(math.prod(shape)) * max(1, len(shape))


def _count_indexed(values: torch.Tensor, index: Any = None, *args: Any, **kwargs: Any) -> int:
    """What an index shows, a mask being as many places as it has true ones."""
    plain: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        item = _as_index(item)
        if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
            count = int(item.count_nonzero())
            plain += [torch.zeros(count, dtype=torch.long, device="meta")] * max(1, item.dim())
        else:
            plain.append(to_meta(item))
    shown = to_meta(values)[tuple(plain)]
    return max(int(values.numel()), int(shown.numel()))


def _as_index(item: Any) -> Any:
    """A list is a tensor of places, or a mask; a tensor of one place is a number. On the meta device neither is known
    by its content."""
    if isinstance(item, list) and next(iter_tensors(item), None) is None:
        item = torch.tensor(item)
    if isinstance(item, torch.Tensor) and not item.dim() and item.dtype is not torch.bool:
        return 0
    return item


def _count_pairs(values: torch.Tensor, *_: Any, **__: Any) -> int:
    """Each row with each."""
    return int(values.size(0) if values.dim() else 1) ** 2 + 4 * int(values.numel())


def _largest(values: torch.Tensor) -> int:
    return int(values.max()) if values.numel() else 0


_BY_CONTENT: dict[str, Callable[..., int]] = {
    "bincount": _count_bins,
    "one_hot": _count_classes,
    "repeat_interleave": _count_repeats,
    "masked_select": _count_found,
    "nonzero": _count_found,
    "argwhere": _count_found,
    "where": _count_found,
    "unique": lambda values, *_, **__: 4 * values.numel(),
    "_unique2": lambda values, *_, **__: 4 * values.numel(),
    "unique_consecutive": lambda values, *_, **__: 4 * values.numel(),
    "cov": _count_pairs,
    "corrcoef": _count_pairs,
    "__getitem__": _count_indexed,
    "index": _count_indexed,
    "__setitem__": _count_indexed,
    "index_put": _count_indexed,
    "index_put_": _count_indexed,
}
