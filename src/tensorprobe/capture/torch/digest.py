"""Checksums: `md5`, which is a CRC-32 as in msprobe, and `hash`, a 64-bit hash in which every element is mixed with its
position.

The hash of elements w_0, w_1, … (their bits as unsigned numbers, in logical order) is the sum over i of mix(w_i) *
weight(i), modulo 2**64, with mix(w) = (w * A) ^ ((w * A) >> 32) and weight(i) = (((2i + 1) * B) ^ (((2i + 1) * B) >>
32)) | 1. A sum can be computed in any order, by any number of threads, and the weights make it see permutations and
transposes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import torch

_A = 0x9E3779B97F4A7C15
_B = 0xD6E8FEB86659FD93
_CHUNK = 1 << 15  # a chunk of 64-bit words and its weights stay in the cache
_LOW_WORD = 0xFFFFFFFF
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def crc32_digest(tensor: torch.Tensor) -> str:
    """CRC-32 of the bytes in logical order, 8 hex digits; bfloat16 and float8 are widened to float32 first, as numpy
    has neither."""
    if tensor.dtype.itemsize < 4 and tensor.is_floating_point() and tensor.dtype is not torch.float16:
        tensor = tensor.float()
    return f"{zlib.crc32(memoryview(as_bytes(tensor))):08x}"


def hash_digest(tensor: torch.Tensor) -> str:
    """The positional hash, 16 hex digits."""
    return f"{int(hash_words(element_bits(tensor))) & 0xFFFFFFFFFFFFFFFF:016x}"


def as_bytes(tensor: torch.Tensor) -> object:
    """The bytes of a tensor in logical order, on the host."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def element_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of their width, in logical order, on the tensor's device."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype is torch.bool:
        return flat.to(torch.uint8)
    return flat.view(_BITS[flat.element_size()])


def hash_words(bits: torch.Tensor) -> torch.Tensor:
    """The hash as a 0-d int64 tensor."""
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    mask = (1 << (8 * bits.element_size())) - 1 if bits.element_size() < 8 else -1
    for number, chunk in enumerate(bits.split(_CHUNK)):
        words = chunk.to(torch.int64)
        if mask != -1:
            words = words & mask
        total += (_mix(words, _A) * _weights(number, bits.device)[: chunk.numel()]).sum()
    return total


@lru_cache(maxsize=64)
def _weights(chunk: int, device: torch.device) -> torch.Tensor:
    index = torch.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK, dtype=torch.int64, device=device)
    return _mix(2 * index + 1, _B) | 1


def _mix(words: torch.Tensor, factor: int) -> torch.Tensor:
    product = words * _signed(factor)
    return product ^ ((product >> 32) & _LOW_WORD)


def _signed(number: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    return number - (1 << 64) if number >= 1 << 63 else number
