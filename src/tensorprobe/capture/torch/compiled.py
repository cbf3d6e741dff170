"""torch.compile: what is compiled is recorded at its boundary, and counted as unseen inside.

Dynamo traces an active mode and a patched `Module.__call__` (graph breaks, recompilations), so both are taken away
while a compiled callable runs. A compiled callable is a closure that the user holds; what all of them call on their way
in and out is `set_eval_frame`, which is therefore the one thing to patch. It was so in torch 2.4 to 2.13; where it is
not, nothing is patched and compiled regions are not noticed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from tensorprobe.capture.call import Call
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.torch.api_name import Api
from tensorprobe.capture.torch.call_mode import CallMode, CallRunner
from tensorprobe.capture.torch.engine import hide_from_compiled_nodes
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.hook_plan import Span, sequence_number
from tensorprobe.capture.torch.memory_tracer import Given
from tensorprobe.capture.torch.mode_stack import remove_mode
from tensorprobe.capture.torch.module_call import ModulePatch
from tensorprobe.model.unseen import COMPILED_REGION

logger = logging.getLogger("tensorprobe")

_EVAL_FRAME = "torch._dynamo.eval_frame"
_SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")  # the second is another name of the first, outside Meta
_WRAPPER_NAMES = ("compile_wrapper", "_fn")


class CompiledRegions:
    """Notices when a compiled callable is entered and left."""

    def __init__(self, runner: CallRunner, mode: CallMode, modules: ModulePatch) -> None:
        self._runner = runner
        self._mode = mode
        self._modules = modules
        self._running: dict[int, CompiledCall] = {}
        """By thread. While one is in it, nobody's modules are seen: the patch is the same for all threads."""
        self._undo_dynamo: Undo | None = None

    def install(self) -> Undo:
        """Patch dynamo if it is loaded; if it is not yet, as soon as torch.compile loads it."""
        self._patch_dynamo()
        original_compile = torch.compile

        def compile_and_patch(*args: Any, **kwargs: Any) -> Any:
            compiled = original_compile(*args, **kwargs)
            self._patch_dynamo()
            return compiled

        torch.compile = compile_and_patch

        def undo() -> None:
            if torch.compile is compile_and_patch:
                torch.compile = original_compile
            if self._undo_dynamo is not None:
                self._undo_dynamo()

        return undo

    def _patch_dynamo(self) -> None:
        dynamo = sys.modules.get(_EVAL_FRAME)
        skip_code = getattr(dynamo, "skip_code", None)
        if self._undo_dynamo is not None or dynamo is None or skip_code is None or not self._runner.is_active:
            return
        originals = {name: getattr(dynamo, name) for name in _SETTERS if hasattr(dynamo, name)}
        if "set_eval_frame" not in originals:
            return
        original = originals["set_eval_frame"]

        def set_eval_frame(callback: Any) -> Any:
            if callback is None or callback is False:
                prior = original(callback)  # first: dynamo must not look at what follows
                self._leave(sys._getframe(1))
                return prior
            self._enter(sys._getframe(1))
            return original(callback)

        skip_code(set_eval_frame.__code__)
        for name in originals:
            setattr(dynamo, name, set_eval_frame)

        def undo() -> None:
            for name, before in originals.items():
                if getattr(dynamo, name) is set_eval_frame:
                    setattr(dynamo, name, before)
            self._undo_dynamo = None

        self._undo_dynamo = undo

    def _enter(self, frame: FrameType | None) -> None:
        wrapper = _find_wrapper(frame)
        thread = threading.get_ident()
        if thread in self._running or wrapper is None or not self._runner.is_active:
            return
        try:
            self._runner.recorder.coverage.add_unseen(COMPILED_REGION)
            running = self._begin(wrapper)
            running.restore_mode = remove_mode(self._mode)
            self._mode.hidden_threads.add(thread)
            self._modules.remove()
            self._running[thread] = running
        except Exception as error:
            self._runner.recorder.note_failure("a compiled region", error)

    def _leave(self, frame: FrameType) -> None:
        thread = threading.get_ident()
        running = self._running.get(thread)
        if running is None or running.frame is not frame:
            return  # dynamo turns itself off and on again while it compiles
        del self._running[thread]
        self._mode.hidden_threads.discard(thread)
        running.restore_mode()
        if not self._runner.is_active:
            return
        if not self._running:
            self._modules.install()
        error, variables = sys.exc_info()[1], frame.f_locals
        if "result" in variables:
            self._end(running, variables["result"])
        elif error is not None:  # the wrapper is on its way out by an exception
            self._runner.end_failed(running.call, running.span, error)
        else:
            when_returned(frame, lambda result: self._end(running, result))

    def _end(self, running: CompiledCall, result: Any) -> None:
        with hidden():
            try:
                hide_from_compiled_nodes(self._mode, result, running.start)
            except Exception as error:
                self._runner.recorder.note_failure("the backward of a compiled region", error)
            if running.api is not None:
                self._runner.end_memory(running.api, running.given, None, result, running.call)
                self._runner.end(running.api, running.call, running.span, result)

    def _begin(self, frame: FrameType) -> CompiledCall:
        running = CompiledCall(frame, sequence_number())
        if self._runner.records_apis:
            variables = frame.f_locals
            running.api = self._runner.names.make("Jit", _compiled_name(variables.get("fn")))
            with hidden():
                args, kwargs = variables.get("args", ()), variables.get("kwargs", {})
                running.given = self._runner.begin_memory(running.api, args, kwargs)
                running.call, running.span = self._runner.begin(running.api, args, kwargs, frame.f_back)
        return running


@dataclass(slots=True)
class CompiledCall:
    """A compiled callable that is running."""

    frame: FrameType
    """Of the wrapper that torch.compile made: its variables are the arguments and, since torch 2.12, the result."""
    start: int
    """The number that its first autograd node gets."""
    api: Api | None = None
    call: Call | None = None
    span: Span | None = None
    given: Given | None = None
    restore_mode: Undo = lambda: None


def when_returned(frame: FrameType, receive: Callable[[Any], None]) -> None:
    """Call `receive` with what the function of `frame` returns. Before torch 2.12 a compiled wrapper keeps its result
    in no variable. Under a profiler, of which there can be one only, nothing is received."""
    if sys.getprofile() is not None:
        return

    def profile(current: FrameType, event: str, value: Any) -> None:
        if current is frame and event == "return":
            sys.setprofile(None)
            receive(value)

    sys.setprofile(profile)


def _find_wrapper(frame: FrameType | None) -> FrameType | None:
    is_wrapper = frame is not None and frame.f_code.co_name in _WRAPPER_NAMES and "args" in frame.f_locals
    return frame if is_wrapper else None


def _compiled_name(function: Any) -> str:
    while hasattr(function, "__wrapped__"):  # dynamo puts functions around what it compiles
        function = function.__wrapped__
    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    return str(getattr(function, "__name__", type(function).__name__))
