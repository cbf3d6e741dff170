"""When is a tensor the same value as before? Then it is reduced once and stored once.

`(storage, _version)` alone is not enough: fused optimizers, collectives, BatchNorm's buffers and writes through `.data`
or numpy change memory without a new version. A value is therefore known only while its storage is held (weakly, so that
its address is not used again), in its exact layout, and only if the storage came out of a call that was seen, or
belongs to a parameter. When sameness is not certain, it is a new value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorprobe.model.record import Stats, Value

_SWEEP_SIZE = 4096

Layout = tuple[Any, ...]


class KnownStorage:
    """What is known of one storage."""

    __slots__ = ("is_exposed", "is_trusted", "last_source", "reference", "stats", "values")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.is_trusted = False
        """Nobody can have written to it unnoticed."""
        self.is_exposed = False
        """Its memory was handed out (`.data`, numpy): from then on it may change unnoticed, for as long as it lives."""
        self.values: dict[Layout, Value] = {}
        self.stats: dict[tuple[Any, ...], Stats] = {}
        """By version and dtype, of views that cover the whole storage in any order."""
        self.last_source: str | None = None


class ValueTable:
    """The values that were seen in the current window."""

    def __init__(self) -> None:
        self._storages: dict[int, KnownStorage] = {}
        self._sweep_at = _SWEEP_SIZE

    def find(self, tensor: torch.Tensor, produced_by: str | None) -> tuple[Value | None, KnownStorage | None, Layout]:
        """The value if it is known, what is known of its storage, and the key to remember it under."""
        if not is_identifiable(tensor):
            return None, None, ()
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            known = self._add(storage)
        if (produced_by is not None or isinstance(tensor, torch.nn.Parameter)) and not known.is_exposed:
            known.is_trusted = True
        layout = (
            tensor._version,
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
        )
        return (known.values.get(layout) if known.is_trusted else None), known, layout

    def remember(self, value: Value, known: KnownStorage, layout: Layout, produced_by: str | None) -> None:
        if produced_by is not None:
            value.source = known.last_source = produced_by
        if known.is_trusted:
            known.values[layout] = value

    def expose(self, tensor: torch.Tensor) -> None:
        """Its memory was handed out."""
        if is_identifiable(tensor):
            storage = tensor.untyped_storage()
            known = self._storages[storage._cdata] = KnownStorage(StorageWeakRef(storage))
            known.is_exposed = True

    def forget(self) -> None:
        """Know no value any more; but remember whose memory was handed out."""
        self._storages = {
            address: known
            for address, known in self._storages.items()
            if known.is_exposed and not known.reference.expired()
        }

    def _add(self, storage: Any) -> KnownStorage:
        if len(self._storages) >= self._sweep_at:
            self._sweep()
        known = self._storages[storage._cdata] = KnownStorage(StorageWeakRef(storage))
        return known

    def _sweep(self) -> None:
        """Let go of storages that are gone; their addresses were kept from being used again until now."""
        for address in [address for address, known in self._storages.items() if known.reference.expired()]:
            del self._storages[address]
        self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._storages))


def is_identifiable(tensor: torch.Tensor) -> bool:
    """Has it a storage and a version to be known by?"""
    return tensor.layout is torch.strided and not tensor.is_inference() and type(tensor) in _PLAIN_TYPES


def permutation_key(tensor: torch.Tensor, layout: Layout) -> tuple[Any, ...] | None:
    """A key for the statistics of all of a storage, whatever the order of its elements; None if `tensor` is not all
    of it."""
    count = tensor.numel()
    if layout[1] or count * tensor.element_size() != tensor.untyped_storage().nbytes() or not is_dense(tensor):
        return None
    return (layout[0], tensor.dtype, tensor.is_conj(), tensor.is_neg())


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


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
