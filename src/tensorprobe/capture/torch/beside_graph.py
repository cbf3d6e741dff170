"""Waiting for a device while another thread captures a CUDA graph."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_RELAXED = 2


@contextmanager
def beside_graphs() -> Iterator[None]:
    """Inside, this thread may wait for a device and allocate memory while another one captures a graph, as the program
    may do after `stop`; CUDA would declare the graph invalid otherwise."""
    exchange = _find_exchange() if torch.cuda.is_initialized() else None
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _find_exchange() -> Any:
    """The function of the driver that sets the mode of a thread, and tells the one before; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # a ROCm device
        return None
