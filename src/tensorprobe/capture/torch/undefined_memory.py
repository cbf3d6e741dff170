"""Memory that nobody has written to since it was handed out: what `torch.empty` returns, and what `resize_` adds.

Known by its storage, which is held weakly, and by the bytes in it: every view of it shows the same bytes. What is in
them means nothing, until something defined is written there.

Not every write is seen: a kernel of an extension writes without a sign. So a few bytes of the memory are kept, and
where a call reads it they are looked at again: if they have changed, somebody has written, and it is data. On a device
this waits for it, but only where memory is read that nothing was seen to write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorprobe.capture.byte_range import (
    NOTHING,
    Ranges,
    intersect,
    make_range,
    ranges_of,
    ranges_where,
    subtract,
    unite,
)
from tensorprobe.capture.torch.distributed_tensor import content_in_flight, local_part
from tensorprobe.capture.torch.value import PLAIN_TYPES, is_wrapped

_SWEEP_SIZE = 256
_SAMPLE_BYTES = 1024
_MAX_FLAGS = 1 << 24
"""Elements of a storage that are told apart one by one, where indices say which of them a call moves or writes."""


class UndefinedStorage:
    """The undefined bytes of one storage."""

    __slots__ = ("ranges", "reference", "sample")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.ranges: Ranges = NOTHING
        self.sample: torch.Tensor | None = None
        """Some of its bytes, as they were."""


Region = tuple[int, UndefinedStorage, Ranges]
"""The address of a storage, what is known of it, and some of its bytes."""


class UndefinedMemory:
    """All of it that is known in a window. Empty most of the time, which costs nothing."""

    def __init__(self) -> None:
        self.storages: dict[int, UndefinedStorage] = {}
        """By their addresses."""
        self._sweep_at = _SWEEP_SIZE

    def __len__(self) -> int:
        return len(self.storages)

    def has(self, tensor: torch.Tensor) -> bool:
        """Is any of this tensor undefined?"""
        return len(self.undefined_part(tensor)) > 0

    def undefined_part(self, tensor: torch.Tensor) -> Ranges:
        """Its undefined bytes, counted from the beginning of its storage."""
        content = memory_of(tensor) if self.storages else None
        known = self.storages.get(content.untyped_storage()._cdata) if content is not None else None
        return NOTHING if content is None or known is None else intersect(known.ranges, bytes_of(content))

    def mark(self, tensor: torch.Tensor) -> Region | None:
        """All of this tensor is undefined from now on."""
        content = memory_of(tensor)
        if content is None:
            return None
        ranges = bytes_of(content)
        known = self._add(content.untyped_storage(), ranges)
        return None if known is None else (content.untyped_storage()._cdata, known, ranges)

    def mark_grown(self, storage: Any, size_bytes: int) -> None:
        """A storage had this size before: what was added is undefined. What was cut off is gone."""
        known = self.storages.get(storage._cdata)
        if known is not None:
            self._set(storage._cdata, intersect(known.ranges, make_range(0, min(size_bytes, storage.nbytes()))))
        if storage.nbytes() > size_bytes:
            self._add(storage, make_range(size_bytes, storage.nbytes()))

    def define(self, tensor: torch.Tensor) -> None:
        """Something defined was written to all of it."""
        content = memory_of(tensor)
        known = self.storages.get(content.untyped_storage()._cdata) if content is not None else None
        if content is not None and known is not None:
            self._set(content.untyped_storage()._cdata, subtract(known.ranges, bytes_of(content)))

    def define_region(self, region: Region) -> None:
        """The same for what was marked before, without the tensor."""
        address, known, ranges = region
        if self.storages.get(address) is known:
            self._set(address, subtract(known.ranges, ranges))

    def give_up(self, tensor: torch.Tensor) -> None:
        """Its memory was handed out, or written to unseen: whatever it holds from now on is data."""
        content = memory_of(tensor)
        if content is not None:
            self.storages.pop(content.untyped_storage()._cdata, None)

    def forget(self) -> None:
        """Take everything as data."""
        self.storages.clear()

    def forget_devices(self) -> None:
        """Take everything as data that is not in the memory of the host."""
        for address, known in list(self.storages.items()):
            if known.sample is None or not known.sample.is_cpu:
                self.storages.pop(address, None)

    def look_again(self, tensor: torch.Tensor) -> None:
        """Give up undefined memory whose content has changed."""
        content = memory_of(tensor)
        known = self.storages.get(content.untyped_storage()._cdata) if content is not None else None
        if content is None or known is None or known.sample is None:
            return
        step, now = take_sample(content.untyped_storage())
        if now is None or now.shape != known.sample.shape:
            self.give_up(content)
            return
        changed = (now != known.sample).nonzero().cpu().numpy() * step
        if len(intersect(known.ranges, np.concatenate([changed, changed + 1], axis=1))):
            self.give_up(content)

    def note_change(self, tensor: torch.Tensor) -> None:
        """A call that was seen has changed undefined memory, and it is undefined as before."""
        content = memory_of(tensor)
        known = self.storages.get(content.untyped_storage()._cdata) if content is not None else None
        if content is not None and known is not None:
            known.sample = take_sample(content.untyped_storage())[1]

    # -- element by element --------------------------------------------------------------------------------------------

    def flags_of(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """For each element, whether it is undefined, and the same for all elements of its storage, in one memory: what
        is changed in the first changes in the second. None for too many."""
        content = memory_of(tensor)
        if content is None:
            return None
        storage, item = content.untyped_storage(), content.element_size()
        count = storage.nbytes() // item
        if count > _MAX_FLAGS:
            return None
        flags = torch.zeros(count, dtype=torch.bool)
        known = self.storages.get(storage._cdata)
        for start, end in known.ranges if known is not None else ():
            flags[start // item : -(-end // item)] = True
        flags = flags.to(content.device)
        return flags.as_strided(content.shape, content.stride(), content.storage_offset()), flags

    def set_flags(self, tensor: torch.Tensor, flags: torch.Tensor) -> None:
        """`flags` says which elements of the storage of a tensor are undefined."""
        content = memory_of(tensor)
        if content is not None:
            ranges = ranges_where(flags.cpu().numpy(), content.element_size())
            self._set(content.untyped_storage()._cdata, NOTHING)
            self._add(content.untyped_storage(), ranges)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _add(self, storage: Any, ranges: Ranges) -> UndefinedStorage | None:
        if not len(ranges):
            return None
        known = self.storages.get(storage._cdata)
        if known is None:
            if len(self.storages) >= self._sweep_at:
                self._sweep()
            known = self.storages[storage._cdata] = UndefinedStorage(StorageWeakRef(storage))
        known.ranges = unite(known.ranges, ranges)
        known.sample = take_sample(storage)[1]
        return known

    def _set(self, address: int, ranges: Ranges) -> None:
        if len(ranges):
            self.storages[address].ranges = ranges
        else:
            self.storages.pop(address, None)

    def _sweep(self) -> None:
        """Let go of storages that are gone; their addresses were kept from being used again until now."""
        for address, known in list(self.storages.items()):
            if known.reference.expired():
                del self.storages[address]
        self._sweep_at = max(_SWEEP_SIZE, 2 * len(self.storages))


def memory_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor whose memory a tensor shows; None if it has none of its own."""
    if type(tensor) not in PLAIN_TYPES:
        tensor = content_in_flight(local_part(tensor))
        if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
            return None
    if tensor.layout is not torch.strided or tensor.is_meta or is_wrapped(tensor) or tensor.is_nested:
        return None
    return tensor


def bytes_of(tensor: torch.Tensor) -> Ranges:
    """Where its elements lie in its storage."""
    return ranges_of(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size())


def storage_address(tensor: torch.Tensor) -> int | None:
    """What tells whether two tensors share their memory."""
    content = memory_of(tensor)
    return None if content is None else int(content.untyped_storage()._cdata)


def take_sample(storage: Any) -> tuple[int, torch.Tensor | None]:
    """A copy of some bytes all over a storage, and how far they are apart: an odd number, so that they are not all the
    same byte of their elements."""
    size = storage.nbytes()
    step = max(1, size // _SAMPLE_BYTES) | 1
    if not size:
        return step, None
    with torch.no_grad():
        content = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return step, content.set_(storage, 0, (-(-size // step),), (step,)).clone()
