"""Tensors as leaves: identity, statistics, checksum, files. Called on the hot path, with the user's own tensors.

Nothing here changes a tensor or leaves anything on it. A tensor is looked at when its call is made: MindSpore's memory
is written without any sign of it (`x[0] = 1`, `assign`, optimizers leave its version as it was), so no earlier look can
be taken for the present value. Where a value came from is known by the tensor object, and equal contents are stored
once, known by a digest of all their bytes.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from mindspore import Tensor, dtype
from mindspore.ops import Primitive

from tensorprobe.capture.mindspore.content import (
    Array,
    array_of,
    missing_content,
    numbers_of,
    wait_for,
    widen_bfloat16,
)
from tensorprobe.capture.mindspore.digest import as_bytes, crc32_digest, hash_digest
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.statistics import reduce_array
from tensorprobe.capture.mindspore.undefined_memory import UndefinedMemory
from tensorprobe.capture.npy import write_npy
from tensorprobe.model.name import MODULE_PREFIXES
from tensorprobe.model.record import Stats, TensorLeaf, Value
from tensorprobe.model.undefined import add_undefined

_DIGESTS = {"md5": crc32_digest, "hash": hash_digest}
_TYPE = "mindspore.Tensor"
_DTYPE_TYPE = next(kind for kind in type(dtype.float32).__mro__ if kind.__name__ == "Type")
_text_of = cache(str)
_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)
_MAX_SOURCES = 100_000
_MAX_ORPHANS = 16


class MindSporeReader:
    """What is known of MindSpore's tensors in one session."""

    tensor_type = Tensor
    atoms: tuple[type, ...] = (Tensor,)
    verifies = False
    traces_values = False
    notes_parts = True

    def __init__(self, *, has_stats: bool, digest_kind: str | None, writes_npy: bool = False) -> None:
        self._has_stats = has_stats
        self._writes_npy = writes_npy
        """Are files such as every numpy reads, those of bfloat16 in float32?"""
        self._digest_kind = digest_kind
        self._sources: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        """Which record made a tensor, by its address."""
        self.undefined = UndefinedMemory()
        self.parameter_names: Mapping[int, str] = {}
        """The parameters of the model that is recorded, by their addresses."""
        self._orphans: dict[int, tuple[Tensor, str]] = {}
        """Results that the program gets as another object, by their memory; held, so that it stays theirs."""

    def begin_fetch(self) -> bool:
        """`read` waits for every value."""
        return False

    def read(self, tensor: Tensor, produced_by: str | None) -> TensorLeaf:
        """A leaf for the value that `tensor` has now."""
        with hidden():
            wait_for(tensor)
            value, reason = self._make_value(tensor)
            source = self._find_source(tensor, produced_by)
            leaf = TensorLeaf(
                _TYPE,
                _text_of(tensor.dtype),
                tuple(tensor.shape),
                bool(tensor._requires_grad),
                value,
                source,
                note=add_undefined(None) if self.undefined and self.undefined.has(tensor) else None,
                is_storable=reason is None,
            )
            leaf.parameter = self.parameter_names.get(id(tensor))
            return leaf

    def trace(self, tensor: Tensor, produced_by: str | None) -> dict[str, Any]:
        """Which tensor it is, without its statistics."""
        with hidden():
            wait_for(tensor)
            source = self._find_source(tensor, produced_by)
            return {
                "type": _TYPE,
                "dtype": _text_of(tensor.dtype),
                "shape": list(tensor.shape),
                "requires_grad": bool(tensor._requires_grad),
                "source": source,
                "parameter": self.parameter_names.get(id(tensor)),
            }

    def copy(self, tensor: Tensor) -> Array:
        with hidden():
            return array_of(tensor).copy()

    def lend(self, tensor: Tensor) -> Array | None:
        with hidden():
            return array_of(tensor)

    def hold(self, tensor: Tensor) -> Tensor:
        return tensor

    def content_key(self, tensor: Tensor) -> Any:
        """What is the same for equal contents only."""
        with hidden():
            array = array_of(tensor)
            return array.dtype.str, array.shape, hashlib.sha256(as_bytes(array)).digest()

    def size_bytes(self, tensor: Tensor) -> int:
        return int(tensor.nbytes)

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        with hidden():
            return first + second

    def write_file(self, copy: Array, file: BinaryIO) -> None:
        is_wide = self._writes_npy and copy.dtype.kind == "V" and copy.dtype.itemsize == 2
        array = widen_bfloat16(copy).reshape(copy.shape) if is_wide else np.ascontiguousarray(copy).reshape(copy.shape)
        write_npy(file, array.dtype, array.shape, as_bytes(array))

    def holds(self, path: Path, tensor: Tensor) -> bool:
        return True

    def describe_object(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, _DTYPE_TYPE):
            return {"type": "mindspore.dtype", "value": str(value)}
        if isinstance(value, Primitive):
            return {"type": "mindspore.Primitive", "value": str(value.name)}
        return None

    def fetch(self) -> None:
        """Everything was read when its call was made."""

    def forget(self) -> None:
        self._sources.clear()
        self._orphans.clear()
        self.undefined.forget()

    def note_orphan(self, tensor: Tensor, source: str) -> None:
        """A result that the program will get as another object with the same memory."""
        self._orphans[tensor.data_ptr()] = tensor, source
        while len(self._orphans) > _MAX_ORPHANS:
            self._orphans.pop(next(iter(self._orphans)))

    def _make_value(self, tensor: Tensor) -> tuple[Value, str | None]:
        reason = missing_content(tensor)
        if not self._has_stats:
            return Value(None), reason
        if reason is not None:
            return Value(Stats(reason=reason)), reason
        value = Value(None)
        try:
            array = array_of(tensor)
            value.stats = reduce_array(numbers_of(tensor, array))
            if self._digest_kind is not None:
                value.digest_kind, value.digest = self._digest_kind, _DIGESTS[self._digest_kind](array)
        except Exception as error:  # a kind of tensor that cannot be looked into
            reason = f"{type(error).__name__}: {error}"[:200]
            value.stats = Stats(reason=reason)
        return value, reason

    def _find_source(self, tensor: Tensor, produced_by: str | None) -> str | None:
        """The record that made it; None where that is the one that is being made."""
        source = self._source_of(tensor)
        if produced_by is not None and (source is None or not produced_by.startswith(_MODULES)):
            self._remember(tensor, produced_by)  # a module hands on what a call inside of it has made
            return None
        return source

    def _source_of(self, tensor: Tensor) -> str | None:
        known = self._sources.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        orphan = self._orphans.get(tensor.data_ptr()) if self._orphans else None
        return orphan[1] if orphan is not None and orphan[0].shape == tensor.shape else None

    def _remember(self, tensor: Tensor, source: str) -> None:
        if len(self._sources) >= _MAX_SOURCES:
            self._sources = {key: known for key, known in self._sources.items() if known[0]() is not None}
        self._sources[id(tensor)] = weakref.ref(tensor), source
