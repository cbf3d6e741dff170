"""Checksums of arrays: `md5`, which is a CRC-32, and `hash`, as PyTorch's twin computes them (see there)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tensorprobe.capture import native

Array = np.ndarray[Any, Any]

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xD6E8FEB86659FD93)
_CHUNK = 1 << 17  # a chunk of 64-bit words and its weights stay in the cache
_KEPT_WEIGHTS = 1 << 20
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}


def crc32_digest(array: Array) -> str:
    """CRC-32 of the bytes in logical order, 8 hex digits."""
    return f"{zlib.crc32(as_bytes(array)):08x}"


def hash_digest(array: Array) -> str:
    """The positional hash, 16 hex digits."""
    flat = _as_words(array)
    found = native.hash_memory(flat.__array_interface__["data"][0], flat.size, 8 * flat.itemsize, 0)
    if found is not None:
        return f"{found:016x}"
    total, start = 0, 0
    for words in _iter_wide(flat):
        product = mix(words, _A) * _weights(start, start + words.size)
        total += int(np.add.reduce(product))  # modulo 2**64, as the sum of the whole is
        start += words.size
    return f"{total & 0xFFFFFFFFFFFFFFFF:016x}"


def as_bytes(array: Array) -> Any:
    """The bytes of an array in logical order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b""


def mix(words: Array, factor: np.uint64) -> Array:
    product = words * factor
    return product ^ (product >> np.uint64(32))


def _as_words(array: Array) -> Array:
    words: Array = np.ascontiguousarray(array).reshape(-1).view(_WORDS[array.dtype.itemsize])
    return words


def _iter_wide(flat: Array) -> Iterator[Array]:
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK].astype(np.uint64)


def _weights(start: int, stop: int) -> Array:
    return _first_weights()[start:stop] if stop <= _KEPT_WEIGHTS else _make_weights(start, stop)


@lru_cache
def _first_weights() -> Array:
    return _make_weights(0, _KEPT_WEIGHTS)


def _make_weights(start: int, stop: int) -> Array:
    index = np.arange(start, stop, dtype=np.uint64)
    return mix(index * np.uint64(2) + np.uint64(1), _B) | np.uint64(1)
