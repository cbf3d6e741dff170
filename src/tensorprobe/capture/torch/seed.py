"""Fixes the randomness of a PyTorch program, and gives back what was before.

What is not of PyTorch is in `capture.seed`. Nothing here initialises a device: what is not yet initialised is seeded
when it comes up.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.seed import (
    Changes,
    SeedHandle,
    Undo,
    apply_changes,
    check_arguments,
    seed_python,
    set_environment,
    tell_of_dropout,
)
from tensorprobe.capture.torch.dropout import set_dropout_inert

_DEVICE_BACKENDS = ("cuda", "xpu", "npu")  # torch.npu is there once torch_npu was imported
_logger = logging.getLogger("tensorprobe")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> SeedHandle:
    """Seed every random generator, with `mode` ask for deterministic algorithms, with `rm_dropout` make dropout inert.

    `mode` and `rm_dropout` leave things as they are when False. `seed` is 0 to 4294967295.
    """
    check_arguments(seed, mode, rm_dropout)
    return apply_changes(_changes(seed, mode, rm_dropout))


def _changes(seed: int, mode: bool, rm_dropout: bool) -> Changes:
    yield from seed_python(seed)
    yield from _seed_generators(seed)
    if mode:
        yield from _make_deterministic()
    if rm_dropout:
        yield "torch dropout", set_dropout_inert(True)
        tell_of_dropout()


def _seed_generators(seed: int) -> Changes:
    backends = {name: getattr(torch, name) for name in _DEVICE_BACKENDS if hasattr(torch, name)}
    yield from [(name, _remember_device(backend)) for name, backend in backends.items()]  # all, before any is seeded
    undo: Undo = partial(torch.set_rng_state, torch.get_rng_state())
    torch.manual_seed(seed)
    yield "torch", undo
    for backend in backends.values():  # all its devices, now or when it is initialised
        backend.manual_seed_all(seed)


def _remember_device(backend: Any) -> Undo:
    """The states of a backend's devices. Before its initialisation there are none: it would start from torch's seed."""
    if backend.is_initialized():
        return partial(backend.set_rng_state_all, backend.get_rng_state_all())
    return partial(backend.manual_seed_all, torch.initial_seed())


def _make_deterministic() -> Changes:
    workspace = "CUBLAS_WORKSPACE_CONFIG"
    if torch.cuda.is_initialized() and workspace not in os.environ:
        _logger.warning(
            "seed_all: CUDA is already in use, so %s may come too late; call seed_all before that, or set it yourself",
            workspace,
        )
    yield workspace, set_environment(workspace, os.environ.get(workspace, ":4096:8"))
    if hasattr(torch, "npu"):
        yield "HCCL_DETERMINISTIC", set_environment("HCCL_DETERMINISTIC", "true")

    enabled, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    yield "deterministic algorithms", partial(torch.use_deterministic_algorithms, enabled, warn_only=warn_only)

    yield "cudnn.deterministic", _set_flag(torch.backends.cudnn, "deterministic", True)
    yield "cudnn.benchmark", _set_flag(torch.backends.cudnn, "benchmark", False)


def _set_flag(owner: Any, name: str, value: bool) -> Undo:
    undo = partial(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
    return undo
