"""Tensors as leaves: identity, statistics, checksum, files. Called on the hot path, with the user's own tensors.

Everything here works on detached tensors, changes nothing, and leaves no attribute or hook behind. What it computes is
hidden from the user's own modes, subclasses and function transforms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tensorprobe.capture.torch import look
from tensorprobe.capture.torch.beside_graph import beside_graphs
from tensorprobe.capture.torch.content import (
    copy_content,
    describe_kind,
    has_dispatch,
    is_sparse,
    missing_content,
    missing_memory,
    own_memory,
    peel,
    plain_content,
    shape_of,
    statistics_content,
    storage_of,
    tensors_in,
    without_dispatch,
)
from tensorprobe.capture.torch.distributed_tensor import (
    NOT_WAITED,
    add_locally,
    content_in_flight,
    describe_sharding,
    is_in_flight,
    is_spread,
    local_part,
)
from tensorprobe.capture.torch.hiding import hidden, is_hidden, isolated, transforms
from tensorprobe.capture.torch.identity import TensorNumbers
from tensorprobe.capture.torch.late_digest import Digests
from tensorprobe.capture.torch.layout import NO_LAYOUT, Layout, layout_of
from tensorprobe.capture.torch.node import find_node
from tensorprobe.capture.torch.npy_file import NpyFiles
from tensorprobe.capture.torch.object import describe_object
from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.capture.torch.statistics import describe_failure, without_repeats
from tensorprobe.capture.torch.tensor_copy import TensorCopy
from tensorprobe.capture.torch.tensor_file import TorchFiles
from tensorprobe.capture.torch.undefined_memory import UndefinedMemory
from tensorprobe.capture.torch.value import (
    PLAIN_TYPES,
    KnownStorage,
    ValueTable,
    is_identifiable,
    version_of,
)
from tensorprobe.model.record import Stats, TensorLeaf, Value
from tensorprobe.model.undefined import add_undefined


class TorchReader:
    """What is known of torch tensors in one session."""

    tensor_type = torch.Tensor
    atoms: tuple[type, ...] = (torch.Tensor, torch.Size)
    verifies = False
    traces_values = True
    notes_parts = True

    def __init__(self, *, has_stats: bool, digest_kind: str | None, writes_npy: bool = False) -> None:
        self.values = ValueTable()
        self.undefined = UndefinedMemory()
        self._files = NpyFiles() if writes_npy else TorchFiles()
        self._has_stats = has_stats
        self._digest_kind = digest_kind
        self._reducer = Reducer()
        self.sums_up: Any = digest_kind if has_stats and digest_kind in (None, "hash") and not self.verifies else False
        """The digest of a usual value, or None for no digest, where one pass over it gives all; else False."""
        self.numbers = TensorNumbers()
        self.parameter_names: Mapping[int, str] = {}
        """By address: what the parameters of the models are called."""
        self.list_parameters: Callable[[], Mapping[int, str]] = dict
        """The same, as it is now."""
        self._unnamed: set[int] = set()
        self._digests = Digests()
        self._fetching = threading.RLock()  # a signal handler that ends the run may fetch in the middle of it
        self._waiting: dict[int, list[tuple[Value, torch.Tensor]]] = {}
        """Values in flight and the tensors that they will be in, by the address of their storage."""
        self._is_quick = look.compiled is not None and not self.verifies
        self.describe_flat = partial(look.compiled.describe_flat, self) if self._is_quick else None

    def read(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        """A leaf for the value that `tensor` has now."""
        if self._is_quick:
            leaf: TensorLeaf = look.compiled.read(self, tensor, produced_by)
            return leaf
        return self.read_any(tensor, produced_by)

    def read_any(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        """The same, without compiled code."""
        if is_hidden() and transforms() is None:  # as it is on the hot path
            return self._read(tensor, produced_by)
        with hidden():
            if transforms() is None:
                return self._read(tensor, produced_by)
            requires_grad = tensor.requires_grad  # of what a transform wraps, not of what is inside
            with isolated():
                leaf = self._read(peel(tensor), produced_by)
            leaf.requires_grad = requires_grad
            return leaf

    def copy(self, tensor: torch.Tensor) -> TensorCopy:
        with isolated():
            return TensorCopy(copy_content(plain_content(peel(tensor))))

    def lend(self, tensor: torch.Tensor) -> TensorCopy | None:
        with isolated():
            content = plain_content(peel(tensor))
            return TensorCopy(own_memory(content)) if content.is_cpu else None

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """autograd makes a gradient that somebody else holds into a copy before it becomes the `.grad` of a leaf."""
        with hidden():
            return tensor.detach() if is_identifiable(tensor) else tensor

    def content_key(self, tensor: torch.Tensor) -> None:
        """`read` tells which values are the same."""

    def size_bytes(self, tensor: torch.Tensor) -> int:
        with isolated():
            bare = local_part(peel(tensor))
            if has_dispatch(bare) and not bare.is_nested:  # it need not be asked for its content again
                return int(bare.numel() * bare.element_size())
            content = plain_content(bare)
            if content.layout is torch.sparse_coo:
                content = content._values()
            elif is_sparse(content):
                content = content.values()
            return int(without_repeats(content).numel() * content.element_size())

    def add(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if is_spread(first) or is_spread(second):
            return add_locally(first, second)
        if is_sparse(first):  # torch adds sparse to dense, not dense to sparse
            first, second = second, first
        with torch.no_grad():
            return without_dispatch(first) + without_dispatch(second)

    def write_file(self, copy: TensorCopy, file: BinaryIO) -> None:
        with isolated():
            self._files.write_copy(copy, file)

    def describe_object(self, value: Any) -> dict[str, Any] | None:
        return describe_object(value)

    def begin_fetch(self) -> bool:
        return self._reducer.take()

    def fetch(self) -> None:
        with self._fetching, isolated(), beside_graphs():  # who comes second finds all there
            try:
                self._reducer.fetch()
            finally:  # where the device has failed, each checksum says so
                self._digests.fetch()

    def forget(self) -> None:
        self._unnamed.clear()
        self.values.forget()
        self.undefined.forget()
        self._waiting.clear()

    def fill_waiting(self, tensor: torch.Tensor) -> None:
        """The result of a collective has come: the records that were waiting for it get its numbers."""
        for value, content in self._waiting.pop(storage_of(local_part(tensor)), ()):
            filled, _ = self._make_value(content, None, NO_LAYOUT)
            value.stats, value.digest, value.digest_kind = filled.stats, filled.digest, filled.digest_kind

    def holds(self, path: Path, tensor: torch.Tensor) -> bool:
        return True

    def observe(self, tree: Any) -> None:
        """What a call that is not recorded is given, or returns: nothing is computed, but a write is noticed."""
        with hidden():
            for tensor in tensors_in(tree):
                self.values.observe(tensor)

    def expose(self, tree: Any) -> None:
        """The memory of these was handed out."""
        with hidden():
            for tensor in tensors_in(tree):
                self.values.expose(tensor)

    def doubt(self) -> None:
        """Something may have written into any tensor without torch noticing."""
        self.values.doubt()

    def _read(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        if type(tensor) not in PLAIN_TYPES and (is_spread(tensor) or is_in_flight(tensor)):
            return self._read_spread(tensor, produced_by)
        is_undefined = bool(self.undefined.storages) and self.undefined.has(tensor)
        if is_undefined:
            self.values.doubt_storage(tensor)  # who writes to it may do so unseen
        value, known, layout = self._find(tensor, produced_by)
        reason = None
        if value is None and known is not None and layout.is_in_line:
            value = self._sum_up(tensor, known, layout, produced_by)
        if value is None:
            value, reason = self.make_value(tensor, known, layout, produced_by)
        if known is not None:
            leaf: TensorLeaf = look.make_leaf(self, tensor, value, known, layout, produced_by)
        else:
            leaf = TensorLeaf("torch.Tensor", look.text_of(tensor.dtype), shape_of(tensor), tensor.requires_grad, value)
            leaf.note = describe_kind(tensor)
        if is_undefined:
            leaf.note = add_undefined(leaf.note)
        if reason is not None:
            leaf.is_storable = False
        return leaf

    def make_value(
        self, tensor: torch.Tensor, known: KnownStorage | None, layout: Layout, produced_by: str | None
    ) -> tuple[Value, str | None]:
        """A value that was not known, and why it has no content, if it has none."""
        value, reason = self._make_value(tensor, known, layout)
        if known is not None:
            self.values.remember(value, known, layout, produced_by)
        return value, reason

    def reduce_line(self, tensor: torch.Tensor, layout: Layout, hashed: Value | None) -> Stats | None:
        """The statistics of a usual value, and its hash for `hashed`; None where it is none."""
        return self._reducer.reduce_line(tensor, layout.extent, hashed)

    def _sum_up(
        self, tensor: torch.Tensor, known: KnownStorage, layout: Layout, produced_by: str | None
    ) -> Value | None:
        """A usual value, the short way, remembered; None where there is more to it. As `sum_up` of _look_sum.h."""
        size_bytes = tensor.untyped_storage().nbytes()
        if self.sums_up is False or not size_bytes:
            return None
        value = Value(None)
        is_whole = known.is_trusted and layout.dense_bytes == size_bytes
        if self.sums_up is None and is_whole and layout.any_order in known.stats:
            return None
        value.digest_kind = self.sums_up or value.digest_kind
        stats = value.stats = self.reduce_line(tensor, layout, value if self.sums_up else None)
        if stats is None:
            return None
        if self.sums_up is None and is_whole:
            known.stats[layout.any_order] = known.stats[layout.in_order] = stats
        self.values.remember(value, known, layout, produced_by)
        return value

    def find_parameter(self, tensor: torch.Tensor) -> str | None:
        """FSDP2 puts other parameters into the modules while they compute; it keeps them from step to step."""
        if id(tensor) in self._unnamed:
            return None
        self.parameter_names = {**self.parameter_names, **self.list_parameters()}
        found = self.parameter_names.get(id(tensor))
        if found is None:
            self._unnamed.add(id(tensor))
        return found

    def has_identified(self, tensor: torch.Tensor) -> bool:
        """Was it seen before? Another tensor in its memory may not show what it shows."""
        known = self.values.peek(tensor)
        return known is not None and self.numbers.has(tensor, known, layout_of(tensor, version_of(tensor)))

    def trace(self, tensor: torch.Tensor, produced_by: str | None) -> dict[str, Any]:
        """Which tensor it is, without its statistics."""
        self.values.find(tensor, produced_by)
        return self.identify(tensor)

    def identify(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Which tensor it is, without a look at its content."""
        known = self.values.peek(tensor)
        leaf: dict[str, Any] = {"type": "torch.Tensor", "dtype": look.text_of(tensor.dtype)}
        leaf |= {"shape": list(shape_of(tensor)), "requires_grad": tensor.requires_grad}
        if known is not None:
            layout = layout_of(tensor, version_of(tensor))
            node = find_node(tensor)
            leaf["tensor"] = self.numbers.number(tensor, known, layout, node, tensor.requires_grad)
            leaf["storage"], leaf["source"] = known.number, known.source_of(layout)
            leaf["parameter"] = self.parameter_names.get(id(tensor))
            if layout[1] or not tensor.is_contiguous():
                leaf["offset"], leaf["stride"] = layout[1], list(layout[3])
        return leaf

    def _find(self, tensor: torch.Tensor, produced_by: str | None) -> tuple[Value | None, KnownStorage | None, Layout]:
        found: tuple[Value | None, KnownStorage | None, Layout] = look.find_value(self.values, tensor, produced_by)
        return found

    def _find_stats(self, known: KnownStorage, key: Any, tensor: torch.Tensor) -> Stats | None:
        return known.stats.get(key)

    def _read_spread(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        """Of a DTensor, the part on this rank; of a tensor in flight, nothing before it has come."""
        local = local_part(tensor)
        reason: str | None = NOT_WAITED
        if is_in_flight(local):
            value = Value(Stats(reason=reason) if self._has_stats else None)
            if self._has_stats:
                self._waiting.setdefault(storage_of(local), []).append((value, content_in_flight(local)))
        else:
            value, reason = self._make_value(local, None, NO_LAYOUT)
        leaf = TensorLeaf(
            "torch.Tensor",
            str(tensor.dtype),
            tuple(tensor.shape),
            tensor.requires_grad,
            value,
            note=add_undefined(None) if self.undefined and self.undefined.has(tensor) else None,
            is_storable=reason is None,
            sharding=describe_sharding(tensor),
            parameter=self.parameter_names.get(id(tensor)),
        )
        part = content_in_flight(local)
        _, known, layout = self.values.find(part, produced_by)
        if known is not None:  # by the memory of its part on this rank
            number = self.numbers.number(tensor, known, layout, find_node(tensor), tensor.requires_grad)
            leaf.tensor, leaf.storage = number, known.number
            if layout[1] or not part.is_contiguous():
                leaf.layout = layout[1], layout[3]
        return leaf

    def _make_value(self, tensor: torch.Tensor, known: KnownStorage | None, layout: Layout) -> tuple[Value, str | None]:
        size_bytes = 0 if known is None else tensor.untyped_storage().nbytes()
        reason = missing_content(tensor) if known is None else missing_memory(tensor, size_bytes)
        if not self._has_stats:
            return Value(None), reason
        if reason is not None:
            return Value(Stats(reason=reason)), reason
        value = Value(None)
        if self._digest_kind == "hash" and known is not None and self._reducer.can_hash(tensor):
            value.digest_kind = "hash"
            value.stats = self._reduce(tensor, layout, value)
            return value, None
        if known is not None and known.is_trusted and layout.dense_bytes == size_bytes:
            value.stats = self._known_stats(known, tensor, layout)
        elif known is not None and known.is_trusted and layout.is_stored_as_shown:
            value.stats = self._find_stats(known, layout.as_read, tensor)
            if value.stats is None:
                value.stats = known.stats[layout.as_read] = self._reduce(tensor, layout)
        else:
            value.stats = self._reduce(tensor, layout)
        if self._digest_kind is not None:
            self._digests.add(value, tensor, self._digest_kind, self.size_bytes)
            if self._digests.are_many:
                self.fetch()
        return value, None

    def _known_stats(self, known: KnownStorage, tensor: torch.Tensor, layout: Layout) -> Stats:
        """Of all of a storage: in another order, only the sketch is another one."""
        stats = self._find_stats(known, layout.any_order, tensor)
        if stats is None:
            stats = known.stats[layout.any_order] = known.stats[layout.in_order] = self._reduce(tensor, layout)
        elif layout.in_order in known.stats:
            stats = known.stats[layout.in_order]
        elif layout.is_stored_as_shown:
            stats = known.stats[layout.in_order] = self._reducer.reorder(stats, tensor.detach())
        else:
            stats = known.stats[layout.in_order] = self._reduce(tensor, layout)
        return stats

    def _reduce(self, tensor: torch.Tensor, layout: Layout = NO_LAYOUT, hashed: Value | None = None) -> Stats:
        try:
            if layout.is_stored_as_shown:
                return self._reducer.reduce(tensor.detach(), 0, hashed)
            return self._reducer.reduce(*statistics_content(tensor), hashed)
        except Exception as error:  # a subclass that cannot be looked into
            return Stats(reason=describe_failure(error))
