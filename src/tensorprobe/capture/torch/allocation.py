"""Memory that is handed out without a call that the mode sees: a storage that grows, as FSDP does it before it gathers
a parameter, and symmetric memory. It is undefined.

Only where the calls of the thread are seen: where they are not, nobody would see it being filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import replace, run_all
from tensorprobe.capture.torch.call_mode import CallMode, CallRunner
from tensorprobe.capture.torch.hiding import isolated
from tensorprobe.capture.torch.mode_stack import is_on_stack

_SYMMETRIC = "symmetric_memory.empty"


def patch_allocation(runner: CallRunner, mode: CallMode) -> Undo:
    """Follow storages that are resized, and symmetric memory."""
    undos = [_patch_storage(runner, mode), *_patch_symmetric_memory(runner, mode)]
    return lambda: run_all(undos)


def _patch_storage(runner: CallRunner, mode: CallMode) -> Undo:
    resize = torch.UntypedStorage.resize_

    def resize_(storage: Any, size_bytes: int) -> Any:
        is_seen = runner.is_active and is_on_stack(mode)
        before = storage.nbytes() if is_seen else 0
        answer = resize(storage, size_bytes)
        if is_seen:
            try:
                with isolated():
                    runner.reader.undefined.mark_grown(storage, before)
            except Exception as error:
                runner.recorder.note_failure("a storage that was resized", error)
        return answer

    return replace(torch.UntypedStorage, "resize_", resize_)


def _patch_symmetric_memory(runner: CallRunner, mode: CallMode) -> Iterator[Undo]:
    owner = getattr(getattr(torch._C, "_distributed_c10d", None), "_SymmetricMemory", None)
    allocate = getattr(owner, "empty_strided_p2p", None)
    if allocate is None:  # before torch 2.5
        return
    api = runner.names.make("Distributed", _SYMMETRIC)

    def empty_strided_p2p(*args: Any, **kwargs: Any) -> Any:
        if not runner.is_active or not is_on_stack(mode):
            return allocate(*args, **kwargs)
        return runner.run(api, allocate, args, kwargs)

    yield replace(owner, "empty_strided_p2p", staticmethod(empty_strided_p2p))
