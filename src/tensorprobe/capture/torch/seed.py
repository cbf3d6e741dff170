"""Fixes the randomness of a PyTorch program, and gives back what was before.

Each change is made by a function that returns its undo; a handle keeps the undos of one `seed_all`, one for each thing
changed. Handles may be restored in any order: an undo whose thing a later, living handle has changed again is passed on
to that handle, so that the last one to be restored brings back the state before the first. Nothing here initialises a
device: what is not yet initialised is seeded when it comes up.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.torch.dropout import set_dropout_inert
from tensorprobe.errors import UsageError

Undo = Callable[[], object]

MAX_SEED = 2**32 - 1
"""The largest that numpy and PYTHONHASHSEED take."""

_DEVICE_BACKENDS = ("cuda", "xpu", "npu")  # torch.npu is there once torch_npu was imported
_logger = logging.getLogger("tensorprobe")
_lock = threading.RLock()
_handles: list[weakref.ref[SeedHandle]] = []
"""The handles not yet restored, oldest first; one that nobody holds any more can never be restored, and drops out."""


class SeedHandle:
    """What one `seed_all` changed; `restore()`, or leaving the `with` block, undoes it."""

    def __init__(self) -> None:
        self._undos: dict[str, Undo] = {}

    def restore(self) -> None:
        """Bring back environment, flags, dropout and random states as they were; a second call does nothing."""
        with _lock:
            later = _handles_after(self)
            with ExitStack() as undoing:  # all of them, also when one fails
                for thing, undo in self._undos.items():
                    heir = next((handle for handle in later if thing in handle._undos), None)
                    if heir is None:
                        undoing.callback(undo)
                    else:
                        heir._undos[thing] = undo
                self._undos = {}
                _handles[:] = [reference for reference in _handles if reference() not in (None, self)]

    def __enter__(self) -> SeedHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _apply(self, changes: Iterator[tuple[str, Undo]]) -> None:
        """Make the changes one by one and keep their undos; if one fails, undo those before it."""
        try:
            for thing, undo in changes:
                self._undos[thing] = undo
        except BaseException:
            self.restore()
            raise


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> SeedHandle:
    """Seed every random generator, with `mode` ask for deterministic algorithms, with `rm_dropout` make dropout inert.

    `mode` and `rm_dropout` leave things as they are when False. `seed` is 0 to 4294967295.
    """
    _check_arguments(seed, mode, rm_dropout)
    with _lock:
        handle = SeedHandle()
        _handles.append(weakref.ref(handle))
        handle._apply(_changes(seed, mode, rm_dropout))
    return handle


def _check_arguments(seed: object, mode: object, rm_dropout: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed_all: seed must be an int, not {seed!r} of type {type(seed).__name__}")
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(
            f"seed_all: seed must be from 0 to {MAX_SEED}, the range that numpy and PYTHONHASHSEED take, not {seed}"
        )
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise UsageError(f"seed_all: {name} must be True or False, not {value!r}")


def _handles_after(handle: SeedHandle) -> list[SeedHandle]:
    living = [found for reference in _handles if (found := reference()) is not None]
    return living[living.index(handle) + 1 :] if handle in living else []


def _changes(seed: int, mode: bool, rm_dropout: bool) -> Iterator[tuple[str, Undo]]:
    """Each thing by its name, changed as the iterator reaches it, with its undo."""
    yield "PYTHONHASHSEED", _set_environment("PYTHONHASHSEED", str(seed))
    yield from _seed_generators(seed)
    if mode:
        yield from _make_deterministic()
    if rm_dropout:
        yield "dropout", set_dropout_inert(True)


def _seed_generators(seed: int) -> Iterator[tuple[str, Undo]]:
    undo: Undo = partial(random.setstate, random.getstate())
    random.seed(seed)
    yield "random", undo

    undo = partial(np.random.set_state, np.random.get_state())
    np.random.seed(seed)
    yield "numpy", undo

    backends = {name: getattr(torch, name) for name in _DEVICE_BACKENDS if hasattr(torch, name)}
    yield from [(name, _remember_device(backend)) for name, backend in backends.items()]  # all, before any is seeded
    undo = partial(torch.set_rng_state, torch.get_rng_state())
    torch.manual_seed(seed)
    yield "torch", undo
    for backend in backends.values():  # all its devices, now or when it is initialised
        backend.manual_seed_all(seed)


def _remember_device(backend: Any) -> Undo:
    """The states of a backend's devices. Before its initialisation there are none: it would start from torch's seed."""
    if backend.is_initialized():
        return partial(backend.set_rng_state_all, backend.get_rng_state_all())
    return partial(backend.manual_seed_all, torch.initial_seed())


def _make_deterministic() -> Iterator[tuple[str, Undo]]:
    workspace = "CUBLAS_WORKSPACE_CONFIG"
    if torch.cuda.is_initialized() and workspace not in os.environ:
        _logger.warning(
            "seed_all: CUDA is already in use, so %s may come too late; call seed_all before that, or set it yourself",
            workspace,
        )
    yield workspace, _set_environment(workspace, os.environ.get(workspace, ":4096:8"))
    if hasattr(torch, "npu"):
        yield "HCCL_DETERMINISTIC", _set_environment("HCCL_DETERMINISTIC", "true")

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


def _set_environment(name: str, value: str) -> Undo:
    before = os.environ.get(name)
    os.environ[name] = value
    return partial(os.environ.pop, name, None) if before is None else partial(os.environ.__setitem__, name, before)
