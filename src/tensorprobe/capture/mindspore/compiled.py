"""Functions that MindSpore compiles: one `Jit` record for each call; what is inside cannot be seen.

While one runs, the patches of the window are off: the compiler reads the functions that a program calls, and must find
MindSpore's own.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from mindspore import nn

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.api_name import Api
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.graph_call import GraphCalls
from tensorprobe.capture.mindspore.hiding import hiding
from tensorprobe.capture.mindspore.module_call import ModuleNames
from tensorprobe.capture.mindspore.traced import PREFIX, TracedRegions, name_and_arguments
from tensorprobe.capture.mindspore.unpatched import Unpatched
from tensorprobe.capture.patch import replace

try:
    from mindspore.graph.api import _JitExecutor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _JitExecutor


class CompiledRegions:
    """Patches of the places where compiled functions begin."""

    def __init__(self, calls: CallRunner, patches: Sequence[Any], graphs: GraphCalls, names: ModuleNames) -> None:
        self._calls = calls
        self._unpatched = Unpatched(calls, patches)
        self._graphs = graphs
        self._names = names

    def install(self) -> Undo:
        with ExitStack() as undos:
            undos.callback(replace(_JitExecutor, "__call__", self._make_call()))
            undos.callback(replace(nn.Cell, "compile_and_run", self._make_run()))
            undos.callback(TracedRegions(self._calls, self._unpatched).install())
            return undos.pop_all().close

    def _make_call(self) -> Any:
        original = _JitExecutor.__call__

        def call_jitted(executor: Any, *args: Any, **kwargs: Any) -> Any:
            name, given = name_and_arguments(getattr(executor.fn, "__name__", type(executor).__name__), args)
            given = args[1:] if executor.obj is not None else given
            function = CompiledFunction(executor.fn, lambda *_, **__: original(executor, *args, **kwargs))
            return self._run(name, function, given, kwargs)

        return call_jitted

    def _make_run(self) -> Any:
        original = nn.Cell.compile_and_run

        def compile_and_run(cell: Any, *args: Any, **kwargs: Any) -> Any:
            function = CompiledFunction(type(cell).construct, lambda *_, **__: original(cell, *args, **kwargs))
            return self._run(type(cell).__name__, function, args, kwargs)

        return compile_and_run

    def _run(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self._calls
        if not calls.is_active:
            return function()
        with self._unpatched.region():
            if hiding.depth:
                return function()
            if not calls.records_apis:
                return self._graphs.run(function, self._names)
            run = self._with_cells(function) if calls.recorder.records_modules else function
            hiding.depth += 1
            try:
                caller = calls.recorder.stacks.caller_of(function.path) or None
                return calls.run(api_with(calls, name, caller), run, args, kwargs, depth=2)
            finally:
                hiding.depth -= 1

    def _with_cells(self, function: Any) -> Any:
        return lambda *_, **__: self._graphs.run(function, self._names)


def api_with(calls: CallRunner, name: str, caller: str | None) -> Api:
    return dataclasses.replace(calls.names.make(PREFIX, name), caller=caller)


class CompiledFunction:
    """A compiled function as it is called: with it comes where its source is, because nothing of that is run."""

    def __init__(self, source: Any, run: Callable[..., Any]) -> None:
        written = inspect.unwrap(source)  # optimizers (2.10) decorate what graph mode compiles anyway
        self.path = str(getattr(getattr(written, "__code__", None), "co_filename", ""))
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)
