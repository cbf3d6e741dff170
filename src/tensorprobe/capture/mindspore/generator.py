"""The state of MindSpore's random generators before a call that draws from one, as a short text. Reads only.

Two runs whose random calls began from the same state must draw the same numbers; where the states differ, the reason
lies before the call: another seed, or another number of draws.
"""

from __future__ import annotations

import zlib

import mindspore
from mindspore.common.generator import default_generator

from tensorprobe.capture.mindspore.content import array_of
from tensorprobe.capture.mindspore.hiding import hidden


def describe_generator() -> str | None:
    """The global seed, and what the default generator has drawn."""
    with hidden():
        state = array_of(default_generator.get_state())
    return f"{mindspore.get_seed()}:{zlib.crc32(state.tobytes()):08x}"
