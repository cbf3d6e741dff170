"""How a tensor lies in its storage. A step has many tensors of few layouts: each is made once, with all that follows
from it, and is then known by its address."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tensorprobe.capture.torch.statistics import KINDS, Extent

QUANTIZED = dict.fromkeys((torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4), "quantized")
_SWEEP_SIZE = 4096


class Unique(tuple[Any, ...]):
    """Of which there are no two equal ones: it need not be looked into to be found."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class Layout(Unique):
    """All that decides, with the memory of its storage, what a tensor shows: its version, its offset, its shape, its
    strides, its dtype, whether it shows complex conjugates, and whether it shows the negative."""

    place: Unique
    """The same without the version."""
    is_contiguous: bool
    is_stored_as_shown: bool
    """Are the elements in memory what the tensor shows: not quantized, conjugated or negated?"""
    is_in_line: bool
    """Has it elements, that lie one after another as it shows them?"""
    extent: Extent
    line: tuple[int, int] | None
    """How many elements, and of which kind: what compiled code is told of them; None where there is none for them."""
    dense_bytes: int
    """How large a storage is of which it shows each element once; -1 where it begins later, or leaves gaps."""
    any_order: tuple[Any, ...]
    """A key for the statistics of all of a storage, whatever the order of its elements."""
    as_read: tuple[Any, ...]
    """What tensors of one storage share that show the same elements in the same order, whatever their shapes."""
    in_order: tuple[Any, ...]
    """The same with the order in which they are shown, for the sketch."""


known_layouts: dict[tuple[Any, ...], Layout] = {}
_places: dict[tuple[Any, ...], Unique] = {}
_sweep_at = _SWEEP_SIZE

NO_LAYOUT = Layout()
NO_LAYOUT.is_stored_as_shown = False


def layout_of(tensor: torch.Tensor, version: int) -> Layout:
    """That of a plain tensor."""
    key = (
        version,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
    found = known_layouts.get(key)
    return found if found is not None else add_layout(key, tensor)


def add_layout(key: tuple[Any, ...], tensor: torch.Tensor) -> Layout:
    """One that is met for the first time."""
    if len(known_layouts) >= _sweep_at:
        _sweep()
    layout = Layout(key)
    layout.place = _places.setdefault(key[1:], Unique(key[1:]))
    layout.is_contiguous = tensor.is_contiguous()
    layout.is_stored_as_shown = key[4] not in QUANTIZED and not key[5] and not key[6]
    layout.is_in_line = layout.is_contiguous and layout.is_stored_as_shown and tensor.numel() > 0
    layout.extent = Extent(key[4], tensor.numel())
    layout.line = (layout.extent.count, KINDS[key[4]]) if key[4] in KINDS else None
    layout.dense_bytes = tensor.nbytes if not key[1] and is_dense(tensor) else -1
    layout.any_order = (key[0], *key[4:])
    layout.as_read = (*key[:2], merge_dimensions(key[2], key[3]), *key[4:])
    layout.in_order = (*layout.any_order, _order_of(tensor))
    return known_layouts.setdefault(key, layout)


def merge_dimensions(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Lengths and steps from the last dimension on, with those as one that are read as one."""
    merged: list[tuple[int, int]] = []
    for length, step in zip(reversed(shape), reversed(steps), strict=True):
        if length == 1:
            continue
        if merged and step == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * length, merged[-1][1])
        else:
            merged.append((length, step))
    return tuple(merged)


def is_dense(tensor: torch.Tensor) -> bool:
    """Does each element have its own place, with no gaps?"""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _order_of(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """In which order a dense tensor shows the elements of its storage: nothing if it is that of memory."""
    if tensor.is_contiguous():
        return ()
    return tuple((size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def forget_written() -> None:
    """A step is over: let go of the layouts of what was written to, which nobody holds. The next step's have another
    version."""
    for key in [key for key in list(known_layouts) if key[0]]:
        if sys.getrefcount(known_layouts.get(key)) <= _HELD_BY_TABLE:
            known_layouts.pop(key, None)
    if len(_places) > 2 * max(_SWEEP_SIZE, len(known_layouts)):
        _sweep()


def _sweep() -> None:
    """Let go of those that nobody holds."""
    global _sweep_at
    for table in (known_layouts, _places):
        for key in list(table):
            if sys.getrefcount(table.get(key)) <= _HELD_BY_TABLE:
                table.pop(key, None)
    _sweep_at = max(_SWEEP_SIZE, 2 * len(known_layouts))


known_layouts[()] = Layout()
_HELD_BY_TABLE = sys.getrefcount(known_layouts[()])
del known_layouts[()]
