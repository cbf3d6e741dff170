"""Collectives that were started and have no result yet, and what somebody may wait for."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tensorprobe.capture.call import Call
from tensorprobe.capture.torch.api_name import Api
from tensorprobe.capture.torch.received import Received


class Pending:
    """A collective that was started. Holds its tensors, as the collective itself does, until somebody has waited or
    nobody can any more."""

    __slots__ = ("api", "call", "handles", "received", "results", "written")

    def __init__(self, api: Api, call: Call | None = None) -> None:
        self.api = api
        self.call = call
        self.received: Received | None = None
        self.results: Sequence[Any] | None = None
        """None once nobody can wait for it."""
        self.written: Sequence[torch.Tensor] = ()
        self.handles = 0

    def hold(self, results: Sequence[Any], written: Sequence[torch.Tensor]) -> None:
        self.results, self.written = results, written

    def let_go(self) -> None:
        self.results, self.written = None, ()


class Handles:
    """What somebody may wait for (works, futures), and the collectives that are complete then."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[weakref.ref[Any], list[Pending]]] = {}

    def add(self, handle: Any, pending: list[Pending]) -> None:
        address = id(handle)
        self._pending[address] = (weakref.ref(handle, lambda _: self._forget(address)), pending)
        for item in pending:
            item.handles += 1

    def find(self, handle: Any) -> list[Pending]:
        entry = self._pending.get(id(handle))
        return entry[1] if entry is not None else []

    def discard(self, handle: Any) -> None:
        self._pending.pop(id(handle), None)

    def clear(self) -> None:
        self._pending.clear()

    def _forget(self, address: int) -> None:
        """Runs at any moment, when the garbage is collected: only lets go."""
        entry = self._pending.pop(address, None)
        for item in entry[1] if entry is not None else ():
            item.handles -= 1
            if item.handles == 0:
                item.let_go()
