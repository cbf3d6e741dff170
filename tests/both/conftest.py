"""Both frameworks in one process: what must be equal is held side by side."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_v", "3")  # before the import: MindSpore then keeps its warnings to itself

import mindspore

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.runtime.launch_blocking()
