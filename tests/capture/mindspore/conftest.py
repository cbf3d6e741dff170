"""MindSpore as all tests of this folder use it: synchronous, so that a look at a result costs little."""

from __future__ import annotations

import mindspore

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.runtime.launch_blocking()
