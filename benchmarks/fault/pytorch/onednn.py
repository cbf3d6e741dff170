"""oneDNN on or off: another set of kernels, and on a CPU without bfloat16 one that fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """torch 2.13 switches oneDNN off for good at the first product in bfloat16 that it fails at; this puts it back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each change warns about TF32, which a CPU does not have
        with torch.backends.mkldnn.flags(enabled=enabled):
            yield
