"""The state of MindSpore's random generators before a call that draws from one, as a short text. Reads only.

Two runs whose random calls began from the same state must draw the same numbers; where the states differ, the reason
lies before the call: another seed, or another number of draws.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

from mindspore.common.generator import default_generator

from tensorprobe.capture.mindspore.content import array_of
from tensorprobe.capture.mindspore.hiding import hidden


def describe_generator() -> str | None:
    """The global seed, how far each kind of operation has come with it, and the state of the default generator."""
    seed, kernel_seeds = seed_state()
    with hidden():
        state = array_of(default_generator.get_state()).tobytes()
    state += repr(sorted(kernel_seeds.items(), key=repr)).encode()
    return f"{'none' if seed is None else format(seed, 'x')}:{zlib.crc32(state):08x}"


def seed_state() -> tuple[int | None, dict[Any, int]]:
    """The global seed, and how far each kind of operation has come with it."""
    module = seed_module()
    return module._GLOBAL_SEED, dict(module._KERNEL_SEED)


def seed_module() -> Any:
    return sys.modules["mindspore.common.seed"]  # the attribute of this name is the function `seed`
