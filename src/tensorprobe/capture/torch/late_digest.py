"""Checksums of values. That of a device tensor is taken at the next fetch, from a copy: nobody waits for it before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from tensorprobe.capture.torch.content import copy_content, plain_content
from tensorprobe.capture.torch.digest import crc32_digest, hash_digest
from tensorprobe.capture.torch.statistics import describe_failure
from tensorprobe.capture.torch.tensor_copy import TensorCopy
from tensorprobe.model.record import Value

_DIGESTS = {"md5": crc32_digest, "hash": hash_digest}
_MAX_LATE_BYTES = 256 << 20


class Digests:
    """The checksums of one session."""

    def __init__(self) -> None:
        self.late: deque[tuple[Value, TensorCopy, int]] = deque()
        """With the bytes of each copy. One thread may add some while another takes them."""
        self._late_bytes = 0

    @property
    def are_many(self) -> bool:
        """Do the copies take so much memory that they are to be fetched?"""
        return self._late_bytes > _MAX_LATE_BYTES

    def add(self, value: Value, tensor: torch.Tensor, kind: str, measure: Callable[[torch.Tensor], int]) -> None:
        """`measure` tells how much memory a copy of it takes."""
        value.digest_kind = kind
        try:
            content = plain_content(tensor)
            content = content.dequantize() if content.is_quantized else content
            if content.is_cpu:
                value.digest = _DIGESTS[kind](content)
            else:
                size_bytes = measure(tensor)
                self.late.append((value, TensorCopy(copy_content(content)), size_bytes))
                self._late_bytes += size_bytes
        except Exception as error:
            _note_missing(value, error)

    def fetch(self) -> None:
        """Where the device has failed, each value says so."""
        while self.late:
            try:
                value, copy, size_bytes = self.late.popleft()
            except IndexError:  # another thread may have got the last one
                return
            self._late_bytes -= size_bytes
            try:
                value.digest = _DIGESTS[value.digest_kind](copy.to_host())
            except Exception as error:
                _note_missing(value, error)


def _note_missing(value: Value, error: BaseException) -> None:
    if value.stats is not None and value.stats.reason is None:
        value.stats.reason = f"no {value.digest_kind}, {describe_failure(error)}"
        value.stats.text = None
