"""Both frameworks in one process: what must be equal is held side by side."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_v", "3")  # before the import: MindSpore then keeps its warnings to itself

from tests.mindspore_runtime import settle_mindspore

settle_mindspore()
