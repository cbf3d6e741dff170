"""When is a tensor the same value as before? Then it is reduced once and stored once.

`(storage, _version)` alone is not enough: fused optimizers, collectives, BatchNorm's buffers and writes through `.data`
or numpy change memory without a new version. A value is therefore known only while its storage is held (weakly, so that
its address is not used again), in its exact layout, and only if nobody can have written to the storage unnoticed: it
was made by an API call that was seen, or in the running backward pass, or belongs to a parameter while such calls are
seen and nobody else holds its storage. Where sameness is not certain, it is a new value:

- memory that torch does not own alone (numpy, dlpack, shared memory), or that was handed out (`.data`, storage);
- a parameter whose storage somebody else holds, too: a `.data`, a view, an array or a storage that was taken earlier;
- a storage whose version went back: a second counter (of `.data`, of `set_`) writes to it, too;
- what a module returned, unless one of the calls inside it was seen to make it;
- a vector without gradient that a forward call made: normalisation writes its running statistics without a new version;
- everything from before the last backward pass began or ended, and, after `stop`, everything in one: what its hooks do
  is not seen.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorprobe.capture.torch.identity import KnownTensors
from tensorprobe.capture.torch.layout import NO_LAYOUT, Layout, forget_written, layout_of
from tensorprobe.model.record import Stats, Value

_STRIDED = torch.strided
_SWEEP_SIZE = 4096
_MAX_LAYOUTS = 256
_API_ENDINGS = (".forward", ".recompute")
graph_task = torch._C._current_graph_task_id
is_wrapped_by_functorch = torch._C._functorch.is_functorch_wrapped_tensor
_count_users = getattr(torch._C, "_storage_Use_Count", None)  # not in torch 2.4 to 2.6
NO_VERSION = -1
_is_batched = torch._C._functorch.is_legacy_batchedtensor


class KnownStorage(KnownTensors):
    """What is known of one storage at its latest version."""

    __slots__ = (
        "epoch",
        "is_exposed",
        "is_trusted",
        "number",
        "reference",
        "sources",
        "stats",
        "values",
        "version",
        "writer",
    )

    def __init__(
        self,
        reference: Any,
        number: int,
        version: int = -1,
        writer: str | None = None,
        epoch: int = -1,
        is_trusted: bool = False,
    ) -> None:
        self.by_place = {}
        self.by_address = {}
        self.reference = reference
        self.number = number
        """Tells it from every other storage of the session: tensors with one number share their memory."""
        self.version = version
        self.epoch = epoch
        self.is_trusted = is_trusted
        """Nobody can have written to it unnoticed."""
        self.is_exposed = False
        """Its memory was handed out: from then on it may change unnoticed, for as long as it lives."""
        self.values: dict[Layout, Value] = {}
        self.stats: dict[tuple[Any, ...], Stats] = {}
        """By dtype, of views that cover the whole storage in any order; and by that order, for their sketches."""
        self.writer = writer
        """The record that made or last changed the content."""
        self.sources: dict[Layout, str] = {}
        """The record that returned it in a certain layout, where that is another one."""

    def restart(self, version: int, writer: str | None) -> None:
        """The content has changed."""
        self.version, self.writer = version, writer
        self.sources.clear()
        self.forget()

    def forget(self) -> None:
        self.values.clear()
        self.stats.clear()

    def expose(self) -> None:
        self.is_exposed, self.is_trusted = True, False
        self.forget()

    def source_of(self, layout: Layout) -> str | None:
        """The record that produced the value; None when nothing that was recorded did."""
        return self.sources.get(layout, self.writer)


class ValueTable:
    """The values that were seen in the current window."""

    def __init__(self) -> None:
        self._storages: dict[int, KnownStorage] = {}
        self._numbers = count()
        self._sweep_at = _SWEEP_SIZE
        self.is_backward_watched = False
        """The backward pass that is running has the mode in it: what its hooks do is noticed."""
        self._sees_calls = False
        self._task = -1
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._storages)

    def find(self, tensor: torch.Tensor, produced_by: str | None) -> tuple[Value | None, KnownStorage | None, Layout]:
        """The value if it is known, what is known of its storage, and the key to remember it under."""
        if not is_identifiable(tensor):
            return None, None, NO_LAYOUT
        known, layout = self._observe(tensor, produced_by)
        if not known.is_trusted and type(tensor) is torch.nn.Parameter and self._sees_calls:
            self.trust_parameter(known, tensor)
        return (known.values.get(layout) if known.is_trusted else None), known, layout

    def trust_parameter(self, known: KnownStorage, tensor: torch.nn.Parameter) -> bool:
        """While calls are seen, nobody writes to a parameter unnoticed whose memory nobody else holds."""
        known.is_trusted = not known.is_exposed and is_held_alone(tensor)
        return known.is_trusted

    def add_seen(self, storage: Any, tensor: torch.Tensor, version: int, produced_by: str | None) -> KnownStorage:
        """The storage of a tensor is seen for the first time."""
        known = self._add(storage)
        known.version, known.writer, known.epoch = version, produced_by, self._epoch
        known.is_trusted = self._is_made_in_sight(tensor, produced_by)
        return known

    def remember(self, value: Value, known: KnownStorage, layout: Layout, produced_by: str | None) -> None:
        if produced_by is not None and produced_by != known.writer:
            if len(known.sources) >= _MAX_LAYOUTS:
                known.sources.clear()
            known.sources.setdefault(layout, produced_by)
        if known.is_trusted:
            if len(known.values) >= _MAX_LAYOUTS:
                known.forget()
            known.values[layout] = value

    def peek(self, tensor: torch.Tensor) -> KnownStorage | None:
        """What is known of its storage; nothing is noted."""
        return self._storages.get(tensor.untyped_storage()._cdata) if is_identifiable(tensor) else None

    def observe(self, tensor: torch.Tensor) -> None:
        """A call that is not recorded is given this, or returns it: note whether it was written to."""
        if is_identifiable(tensor):
            self._observe(tensor, None)

    def overwrite(self, tensor: torch.Tensor, produced_by: str | None) -> None:
        """A record, or a call that has none, wrote to it without a new version, as collectives do."""
        if is_identifiable(tensor):
            storage = tensor.untyped_storage()
            (self._storages.get(storage._cdata) or self._add(storage)).restart(version_of(tensor), produced_by)

    def expose(self, tensor: torch.Tensor) -> None:
        """Its memory was handed out."""
        if is_identifiable(tensor):
            storage = tensor.untyped_storage()
            (self._storages.get(storage._cdata) or self._add(storage)).expose()

    def doubt_storage(self, tensor: torch.Tensor) -> None:
        """Something may have written to its memory unseen."""
        known = self._storages.get(tensor.untyped_storage()._cdata) if is_identifiable(tensor) else None
        if known is not None:
            known.forget()

    def forget(self) -> None:
        """Know no value any more; but remember whose memory was handed out."""
        self._storages = {
            address: known
            for address, known in list(self._storages.items())
            if known.is_exposed and not known.reference.expired()
        }
        for known in list(self._storages.values()):
            known.restart(known.version, None)
        self._sees_calls = False
        forget_written()

    def doubt(self) -> None:
        """Something may have written anywhere: know no value any more, but remember who made it."""
        for known in list(self._storages.values()):
            known.forget()

    def _observe(self, tensor: torch.Tensor, produced_by: str | None) -> tuple[KnownStorage, Layout]:
        """Note what can be seen of a tensor's storage."""
        task = graph_task()
        if task != self._task:  # a backward pass has begun or ended
            self._task = task
            self._epoch += 1
        storage = tensor.untyped_storage()
        version = version_of(tensor)
        known = self._storages.get(storage._cdata)
        if known is None:
            known = self.add_seen(storage, tensor, version, produced_by)
        elif version > known.version:
            known.restart(version, produced_by)
        elif version < known.version:
            known.expose()
        if known.epoch != self._epoch:
            known.epoch, known.is_trusted = self._epoch, False
            known.forget()
        if not known.is_exposed and (version == NO_VERSION or not storage.resizable()):
            known.expose()
        return known, layout_of(tensor, version)

    def _is_made_in_sight(self, tensor: torch.Tensor, produced_by: str | None) -> bool:
        """Whether a storage that is seen for the first time can be trusted."""
        if self._task != -1 and not torch.is_grad_enabled():  # with gradients it is a forward: a recomputation
            return self.is_backward_watched
        if produced_by is None or not produced_by.endswith(_API_ENDINGS):  # the names of module calls end in a number
            return False
        self._sees_calls = True
        return tensor.dim() != 1 or bool(tensor.requires_grad)

    def _add(self, storage: Any) -> KnownStorage:
        if len(self._storages) >= self._sweep_at:
            self._sweep()
        known = self._storages[storage._cdata] = KnownStorage(StorageWeakRef(storage), next(self._numbers))
        return known

    def _sweep(self) -> None:
        """Let go of storages that are gone; their addresses were kept from being used again until now."""
        for address, known in list(self._storages.items()):
            if known.reference.expired():
                del self._storages[address]
        self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._storages))


def count_holders(tensor: torch.Tensor) -> tuple[int, int]:
    """How many tensors, arrays and storages hold the memory of a tensor, and how many names its storage has."""
    storage = tensor.untyped_storage()
    return (_count_users(storage._cdata) if _count_users is not None else 0), sys.getrefcount(storage)


_ONE_HOLDER = count_holders(torch.empty(1))


def is_held_alone(tensor: torch.Tensor) -> bool:
    """Does nobody but this tensor hold its memory? Not known, and so no, where torch does not count."""
    return _count_users is not None and count_holders(tensor) == _ONE_HOLDER


def version_of(tensor: torch.Tensor) -> int:
    """How often it was written to. Of what is made in inference mode torch does not count that: it is never known."""
    return NO_VERSION if tensor.is_inference() else tensor._version


def is_identifiable(tensor: torch.Tensor) -> bool:
    """Has it a storage to be known by?"""
    return not (
        type(tensor) not in PLAIN_TYPES
        or tensor.layout is not _STRIDED
        or is_wrapped_by_functorch(tensor)
        or _is_batched(tensor)
        or tensor.is_nested
    )


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Is it what a function transform, or a batched backward pass, lets its function see?"""
    return bool(is_wrapped_by_functorch(tensor) or _is_batched(tensor))


PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
