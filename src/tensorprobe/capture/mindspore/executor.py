"""MindSpore's PyNative executor, where the version at hand keeps it."""

from __future__ import annotations

from typing import Any

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _pynative_executor

executor: Any = _pynative_executor
