"""Verify mode (`TENSORPROBE_VERIFY=1`): every value that is taken as known is computed again and compared.

It waits for the device and reads tensor files back, so it is no way to train. It is how to find out whether a write
went unnoticed; the tests run with it once.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import torch

from tensorprobe.capture.torch.content import plain_content
from tensorprobe.capture.torch.digest import hash_digest
from tensorprobe.capture.torch.hiding import isolated
from tensorprobe.capture.torch.layout import Layout
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.value import KnownStorage
from tensorprobe.model.record import Stats, TensorLeaf, Value

VARIABLE = "TENSORPROBE_VERIFY"
_ROUNDING = 1e-9  # on a device the order of a sum is not fixed; the fingerprint is exact


def is_wanted() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


class VerifyingReader(TorchReader):
    """A reader that trusts nothing it knows. A leaf whose value had changed unnoticed says so, and has the new one."""

    verifies = True

    def __init__(self, *, has_stats: bool, digest_kind: str | None, writes_npy: bool = False) -> None:
        super().__init__(has_stats=has_stats, digest_kind=digest_kind, writes_npy=writes_npy)
        self.hits = 0
        """How many values were computed again."""
        self._fingerprints: dict[int, tuple[Value, str | None]] = {}
        """By the address of a value, which is held so that the address stays its own."""
        self._stored: dict[tuple[int, int], str | None] = {}
        self._now = threading.local()

    def forget(self) -> None:
        super().forget()
        self._fingerprints.clear()
        self._stored.clear()

    def holds(self, path: Path, tensor: torch.Tensor) -> bool:
        """Is the content of a stored file what the tensor has now? One that could not be written is another failure."""
        if not path.exists():
            return True
        status = path.stat()
        file = (status.st_ino, status.st_mtime_ns)  # a later backward pass writes another file of the same name
        with isolated():
            if file not in self._stored:
                self._stored[file] = fingerprint(self._files.read(path))
            return self._stored[file] == fingerprint(self._files.stored(tensor))

    def _read(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        self._now.mismatch = None
        leaf = super()._read(tensor, produced_by)
        leaf.mismatch = self._now.mismatch
        return leaf

    def _find(self, tensor: torch.Tensor, produced_by: str | None) -> tuple[Value | None, KnownStorage | None, Layout]:
        value, known, layout = super()._find(tensor, produced_by)
        if value is None or value.stats is None or known is None:
            return value, known, layout
        self.hits += 1
        kept, known.stats = known.stats, {}
        fresh, _ = self._make_value(tensor, known, layout)
        self.fetch()
        difference = self._difference(value, fresh)
        if difference is None:
            known.stats = kept
            return value, known, layout
        known.forget()  # neither this nor anything else that was known of this storage is true any more
        self._now.mismatch = difference
        return None, known, layout

    def _find_stats(self, known: KnownStorage, key: Any, tensor: torch.Tensor) -> Stats | None:
        stats = super()._find_stats(known, key, tensor)
        if stats is None:
            return None
        self.hits += 1
        fresh = self._reduce(tensor)
        self.fetch()
        difference = stats_difference(stats, fresh)
        if difference is None:
            return stats
        known.forget()
        self._now.mismatch = difference
        return None

    def _make_value(self, tensor: torch.Tensor, known: KnownStorage | None, layout: Layout) -> tuple[Value, str | None]:
        value, reason = super()._make_value(tensor, known, layout)
        if known is not None and value.stats is not None and reason is None:
            self._fingerprints[id(value)] = (value, fingerprint(tensor))
        return value, reason

    def _difference(self, known: Value, fresh: Value) -> str | None:
        """What of a value is not as it was known; None if all is."""
        assert known.stats is not None and fresh.stats is not None
        if known.digest != fresh.digest:
            return f"{known.digest_kind} {known.digest} is {fresh.digest}"
        before, now = (self._fingerprints.pop(id(value), (value, None))[1] for value in (known, fresh))
        self._fingerprints[id(known)] = (known, before)
        difference = stats_difference(known.stats, fresh.stats)
        return difference or ("the order or the bits of its elements" if before != now else None)


def stats_difference(known: Stats, fresh: Stats) -> str | None:
    """All but the sketch, which depends on the order: that is what the fingerprint is for."""
    for word in Stats.__slots__:
        if word in ("sketch", "text"):
            continue
        before, now = getattr(known, word), getattr(fresh, word)
        if not is_same_number(before, now, fresh.norm if word in ("mean", "norm") else 0.0):
            return f"{word.capitalize()} {before} is {now}"
    return None


def is_same_number(before: Any, now: Any, scale: Any) -> bool:
    if before == now or not (isinstance(before, float) and isinstance(now, float)):
        return bool(before == now)
    return (math.isnan(before) and math.isnan(now)) or abs(before - now) <= _ROUNDING * abs(scale or 0.0)


def fingerprint(tensor: torch.Tensor) -> str | None:
    """All bits, in their places; None for a dtype whose bits torch does not show, and for too many."""
    try:
        content = plain_content(tensor)
        return hash_digest(content.dequantize() if content.is_quantized else content)
    except (RuntimeError, TypeError, ValueError):
        return None
