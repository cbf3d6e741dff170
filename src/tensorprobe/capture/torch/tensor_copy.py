"""A tensor that waits to be written, on the device where it was computed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from tensorprobe.capture.torch.beside_graph import beside_graphs
from tensorprobe.capture.torch.large_file import DTYPES, Kind
from tensorprobe.capture.torch.layout import is_dense

_MAX_PINNED_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20


class TensorCopy:
    """A copy on the device of its tensor; it comes to the host in the thread that writes it, so that the training
    thread need not wait."""

    __slots__ = ("_event", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def to_host(self) -> torch.Tensor:
        if self._event is None:
            return self._tensor.cpu()
        with beside_graphs():
            self._event.synchronize()
            is_pinned = _is_plain(self._tensor) and 0 < self._tensor.nbytes <= _MAX_PINNED_BYTES
            return _fetch_pinned(self._tensor) if is_pinned else self._tensor.cpu()

    @property
    def is_for_pieces(self) -> bool:
        """Is it so large that it should come to the host in pieces?"""
        return self._event is not None and self._tensor.nbytes > _MAX_PINNED_BYTES and _is_plain(self._tensor)

    @property
    def kind(self) -> Kind:
        return self._tensor.dtype, tuple(self._tensor.shape), self._tensor.stride()

    def iter_pieces(self) -> Iterator[Any]:
        """The bytes of its elements as they lie in memory. While one piece is written the next one is on its way."""
        assert self._event is not None
        with beside_graphs():
            self._event.synchronize()
        elements = self._tensor.as_strided((self._tensor.numel(),), (1,)).view(torch.uint8)
        pieces = elements.split(_PIECE_BYTES)
        on_its_way = _begin_to_fetch(pieces[0])
        for number in range(len(pieces)):
            host, event = on_its_way
            if number + 1 < len(pieces):
                on_its_way = _begin_to_fetch(pieces[number + 1])
            with beside_graphs():  # not around what the writer does with it
                event.synchronize()
            yield memory_of(host)


def memory_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor of the host whose elements lie one after another, for whoever holds it. Not by numpy(),
    which would fix the size of the storage for its owner."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""


def _is_plain(tensor: torch.Tensor) -> bool:
    """Is it the elements that it shows, one beside the other?"""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.dtype in DTYPES and is_dense(tensor)


def _fetch_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Through memory that the device writes to by itself, which torch keeps for the next one: new memory of the host
    costs thirty times as long as the way to it. On a stream of its own it does not wait for what the program launches
    meanwhile."""
    host, event = _begin_to_fetch(tensor)
    event.synchronize()
    return host


def _begin_to_fetch(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
    stream = _side_stream(tensor.device)
    with torch.inference_mode(False), torch.cuda.stream(stream), beside_graphs():
        host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host, stream.record_event()


@lru_cache(maxsize=64)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
