"""The ways in which a MindSpore program runs: operation by operation, or compiled to a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import nn

MODES = ["pynative", "graph", "ast", "bytecode"]
"""PyNative, GRAPH_MODE, and `@ms.jit` in PyNative with its two ways to read a program."""
COMPILED = ["graph", "ast"]
"""Where the graph compiler reads the whole program, calls of ours included."""


@contextmanager
def running_in(mode: str) -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=before)


def compiled(mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function, or a cell, as this mode runs it."""
    if isinstance(function, nn.Cell):
        if mode in ("ast", "bytecode"):
            function.construct = ms.jit(function.construct, capture_mode=mode)
        return function
    if mode == "pynative":
        return function
    return ms.jit(function, capture_mode="bytecode" if mode == "bytecode" else "ast")
