"""MindSpore as the tests use it, in every process that imports it here."""

from __future__ import annotations

import functools

import mindspore


@functools.cache  # MindSpore takes the number of threads once in a process
def settle_mindspore() -> None:
    """Before the first operation. It computes at once, so that a look at a result costs little; and with one thread an
    operation, because with several it gives one program other bits from run to run (docs/mindspore.md)."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()
    mindspore.device_context.cpu.op_tuning.threads_num(1)
