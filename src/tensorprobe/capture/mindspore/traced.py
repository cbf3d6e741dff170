"""Functions that MindSpore compiles from what they do: `jit(capture_mode="bytecode")` and `"trace"`. One `Jit` record
for each call, as for the others; but these show only where they begin and where they end.

A traced function that raises has no end: it is closed when the next one begins, or when the window ends.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

from tensorprobe.capture.call import Call
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.api_name import Api
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.hiding import hiding
from tensorprobe.capture.mindspore.hook_plan import Span
from tensorprobe.capture.mindspore.unpatched import Unpatched
from tensorprobe.capture.patch import replace

try:
    from mindspore.graph import jit_begin_end, jit_trace
    from mindspore.graph._utils.pijit_context import PIJitCaptureContext
except ImportError:  # before MindSpore 2.9
    jit_trace = jit_begin_end = PIJitCaptureContext = None

PREFIX = "Jit"
COMPILED = "inside a compiled function"
_NO_END = RuntimeError("the traced function has raised")


class Region(NamedTuple):
    """A compiled function that is running."""

    api: Api | None
    """None if it is not recorded."""
    call: Call | None = None
    span: Span | None = None


class OpenRegions(threading.local):
    """Those of a thread, one inside another."""

    def __init__(self) -> None:
        self.stack: list[Region] = []


class TracedRegions:
    """Patches of the places where these functions begin and end."""

    def __init__(self, calls: CallRunner, unpatched: Unpatched) -> None:
        self._calls = calls
        self._unpatched = unpatched
        self._open = OpenRegions()

    def install(self) -> Undo:
        with ExitStack() as undos:
            undos.callback(self._close_all)
            if PIJitCaptureContext is not None:
                undos.callback(replace(PIJitCaptureContext, "__enter__", self._make_enter()))
                undos.callback(replace(PIJitCaptureContext, "__exit__", self._make_exit()))
                begin, end = self._make_begin(), self._make_end()
                for module in (jit_trace, jit_begin_end):
                    undos.callback(replace(module, "_jit_trace_begin", begin))
                    undos.callback(replace(module, "_jit_trace_end", end))
            return undos.pop_all().close

    # -- bytecode ------------------------------------------------------------------------------------------------------

    def _make_enter(self) -> Any:
        original = PIJitCaptureContext.__enter__

        def enter(context: Any) -> Any:
            frame = sys._getframe(1)  # of the function that stands in for the user's, with what it was given
            given = frame.f_locals
            args, kwargs = given.get("args", ()), given.get("kwds", {})
            name, args = name_and_arguments(getattr(context.fn, "__name__", "function"), args)
            self._begin(name, args, kwargs, frame.f_back)
            return original(context)

        return enter

    def _make_exit(self) -> Any:
        original = PIJitCaptureContext.__exit__

        def leave(context: Any, kind: Any, error: Any, trace: Any) -> Any:
            result = original(context, kind, error, trace)
            self._end(context.ret, error)
            return result

        return leave

    # -- trace ---------------------------------------------------------------------------------------------------------

    def _make_begin(self) -> Any:
        original = jit_trace._jit_trace_begin

        def begin(fn_name: Any, *args: Any, **kwargs: Any) -> Any:
            self._close_all()
            places = str(fn_name).partition("#")[0].split(".")
            is_cell = len(places) > 1 and places[-1] == "construct"
            self._begin(places[-2] if is_cell else places[-1], args, {}, sys._getframe(2))
            try:
                return original(fn_name, *args, **kwargs)
            except BaseException as error:
                self._end(None, error)
                raise

        return begin

    def _make_end(self) -> Any:
        original = jit_trace._jit_trace_end

        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                output = original(*args, **kwargs)
            except BaseException as error:
                self._end(None, error)
                raise
            self._end(output, None)
            return output

        return end

    # -- both ----------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> None:
        calls, region = self._calls, Region(None)
        self._unpatched.enter()
        if calls.is_active and not hiding.depth:
            reason = calls.why_unseen() or (None if calls.records_apis else COMPILED)
            if reason is not None:
                calls.recorder.coverage.add_unseen(reason)
            else:
                api = calls.names.make(PREFIX, name)
                calls.recorder.coverage.excluded += not api.is_recorded
                region = Region(api, *calls.begin(api, args, kwargs, frame)) if api.is_recorded else region
        hiding.depth += 1
        self._open.stack.append(region)

    def _end(self, output: Any, error: BaseException | None) -> None:
        if not self._open.stack:
            return  # it began before the window did
        api, call, span = self._open.stack.pop()
        hiding.depth -= 1
        if api is not None and error is not None:
            self._calls.end_failed(call, span, error)
        elif api is not None:
            self._calls.end(api, call, span, output)
        self._unpatched.leave()

    def _close_all(self) -> None:
        """What is open has no end: it has raised."""
        while self._open.stack:
            self._end(None, _NO_END)


def name_and_arguments(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Of a cell's `construct`, the class of the cell and the arguments without the cell."""
    if name == "construct" and args and hasattr(args[0], "construct"):
        return type(args[0]).__name__, args[1:]
    return name, args
