"""Functions that MindSpore compiles: one `Jit` record for each call; what is inside cannot be seen.

While one runs, the patches of the window are off: the compiler reads the functions that a program calls, and must find
MindSpore's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import mindspore
from mindspore import context, nn

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.hiding import hiding
from tensorprobe.capture.patch import replace

try:
    from mindspore.graph.api import _JitExecutor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _JitExecutor

PREFIX = "Jit"
COMPILED = "inside a compiled function"


class CompiledRegions:
    """Patches of the places where compiled functions begin."""

    def __init__(self, calls: CallRunner, patches: Sequence[Any]) -> None:
        self._calls = calls
        self._patches = patches

    def install(self) -> Undo:
        with ExitStack() as undos:
            undos.callback(replace(_JitExecutor, "__call__", self._make_call()))
            undos.callback(replace(nn.Cell, "compile_and_run", self._make_run()))
            return undos.pop_all().close

    def _make_call(self) -> Any:
        original = _JitExecutor.__call__

        def call_jitted(executor: Any, *args: Any, **kwargs: Any) -> Any:
            name = str(getattr(executor.fn, "__name__", type(executor).__name__))
            given = args[1:] if executor.obj is not None else args
            return self._run(name, lambda *_, **__: original(executor, *args, **kwargs), given, kwargs)

        return call_jitted

    def _make_run(self) -> Any:
        original = nn.Cell.compile_and_run

        def compile_and_run(cell: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run(type(cell).__name__, lambda *_, **__: original(cell, *args, **kwargs), args, kwargs)

        return compile_and_run

    def _run(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self._calls
        if not calls.is_active:
            return function()
        with self._unpatched():
            if hiding.depth or not calls.records_apis:
                if not hiding.depth:
                    calls.recorder.coverage.add_unseen(COMPILED)
                return function()
            hiding.depth += 1
            try:
                return calls.run(calls.names.make(PREFIX, name), function, args, kwargs, depth=2)
            finally:
                hiding.depth -= 1

    @contextmanager
    def _unpatched(self) -> Iterator[None]:
        for patch in reversed(self._patches):
            patch.remove()
        try:
            yield
        finally:
            if self._calls.is_active:
                for patch in self._patches:
                    patch.install()


def is_graph_mode() -> bool:
    return bool(context.get_context("mode") == mindspore.GRAPH_MODE)
