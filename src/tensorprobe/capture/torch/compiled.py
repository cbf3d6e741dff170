"""torch.compile: what is compiled is recorded at its boundary, and counted as unseen inside.

Dynamo traces an active mode and a patched `Module.__call__` (graph breaks, recompilations), so both are taken away
while a compiled callable runs. A compiled callable is a closure that the user holds; what all of them call on their way
in and out is `set_eval_frame`, which is therefore the one thing to patch. It was so in torch 2.4 to 2.13; where it is
not, nothing is patched and compiled regions are not noticed.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from tensorprobe.capture.call import Call
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.torch.api_name import Api
from tensorprobe.capture.torch.call_mode import CallMode, CallRunner
from tensorprobe.capture.torch.gradient import Span

logger = logging.getLogger("tensorprobe")

COMPILED = "compiled region"
_EVAL_FRAME = "torch._dynamo.eval_frame"
_SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")  # the second is another name of the first, outside Meta
_WRAPPER_NAMES = ("compile_wrapper", "_fn")


class CompiledRegions:
    """Notices when a compiled callable is entered and left."""

    def __init__(self, runner: CallRunner, mode: CallMode | None, unpatch_modules: Undo, patch_modules: Any) -> None:
        self._runner = runner
        self._mode = mode
        self._unpatch_modules = unpatch_modules
        self._patch_modules = patch_modules
        self._region: Region | None = None
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
        if self._region is not None or wrapper is None or not self._runner.is_active:
            return
        try:
            self._runner.recorder.coverage.add_unseen(COMPILED)
            region = self._begin(wrapper)
            region.restore_mode = remove_mode(self._mode)
            self._unpatch_modules()
            self._region = region
        except Exception as error:
            self._runner.recorder.note_failure("a compiled region", error)

    def _leave(self, frame: FrameType) -> None:
        region = self._region
        if region is None or region.frame is not frame:
            return  # dynamo turns itself off and on again while it compiles
        self._region = None
        region.restore_mode()
        if not self._runner.is_active:
            return
        self._patch_modules()
        if region.api is not None:
            with torch._C.DisableTorchFunction():
                self._end(region, region.api)

    def _end(self, region: Region, api: Api) -> None:
        variables = region.frame.f_locals
        if "result" in variables:
            self._runner.end(api, region.call, region.span, variables["result"])
        else:  # the wrapper is on its way out by an exception
            error = sys.exc_info()[1] or RuntimeError("the compiled function raised")
            self._runner.end_failed(region.call, region.span, error)

    def _begin(self, frame: FrameType) -> Region:
        region = Region(frame)
        if self._mode is not None:
            variables = frame.f_locals
            region.api = self._runner.names.make("Jit", _compiled_name(variables.get("fn")))
            with torch._C.DisableTorchFunction():
                args, kwargs = variables.get("args", ()), variables.get("kwargs", {})
                region.call, region.span = self._runner.begin(region.api, args, kwargs, frame.f_back)
        return region


@dataclass(slots=True)
class Region:
    """A compiled callable that is running."""

    frame: FrameType
    """Of the wrapper that torch.compile made: its variables are the arguments and, at the end, the result."""
    api: Api | None = None
    call: Call | None = None
    span: Span | None = None
    restore_mode: Undo = lambda: None


def remove_mode(mode: CallMode | None) -> Undo:
    """Take one mode off the stack, wherever it is in it; the undo puts it back to its place."""
    above: list[Any] = []
    count = torch._C._len_torch_function_stack()
    while count and mode is not None:
        top = torch._C._pop_torch_function_stack()
        count -= 1
        if top is mode:
            break
        above.append(top)
    else:
        if mode is not None:
            logger.warning(
                "stop() was called in another thread than start(): what this thread calls is not recorded any more"
            )
        mode = None
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
    depth = len(above)

    def restore() -> None:
        if mode is None:
            return
        over = [torch._C._pop_torch_function_stack() for _ in range(min(depth, torch._C._len_torch_function_stack()))]
        torch._C._push_on_torch_function_stack(mode)
        for other in reversed(over):
            torch._C._push_on_torch_function_stack(other)

    return restore


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
