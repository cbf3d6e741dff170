"""The meanings of kernels that come with tensorprobe. Their libraries need not be installed: a meaning is plain torch.
What each computes is taken from its documentation; which were tried against the real kernel is told in
docs/meaning.md."""

from __future__ import annotations

from functools import cache
from importlib import import_module

_FILES = ("kernel_attention", "kernel_npu", "kernel_norm", "kernel_gate", "kernel_loss", "kernel_matmul")


@cache
def build_in_all() -> None:
    """Make all of them known, once. They need torch, as every replay does."""
    for name in _FILES:
        import_module(f"tensorprobe.replay.meaning.{name}")
