"""Sees every public call of torch once, the outermost only. The user's function gets the very objects it was given.

While the handler runs, the mode is off: the reductions of capture itself are not seen.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tensorprobe.capture.call import Call
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.api_name import Api, ApiNames
from tensorprobe.capture.torch.gradient import GradientTracer, Span, is_in_backward
from tensorprobe.capture.torch.left_mode import remove_after_this_call
from tensorprobe.capture.torch.reader import TorchReader

IN_BACKWARD = "call inside backward"
TRACED = "call inside torch.jit.trace"
ASYNCHRONOUS = "asynchronous: the result was not there yet when the call returned"


def is_traced() -> bool:
    """Is torch.jit.trace running? It would take what capture computes as part of the program."""
    return torch._C._get_tracing_state() is not None


class CallRunner:
    """Runs a user's call between the notes that the recorder takes. Whatever goes wrong in the notes, the call runs,
    once."""

    def __init__(self, recorder: Recorder, reader: TorchReader, gradients: GradientTracer, names: ApiNames) -> None:
        self.recorder = recorder
        self.reader = reader
        self.gradients = gradients
        self.names = names
        self.is_active = True
        """False once the window is closed: a patch that could not be taken back then passes calls through."""

    def deactivate(self) -> None:
        self.is_active = False

    def run(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 1) -> Any:
        """`depth`: how many frames above the caller of this the user's call was made."""
        if is_in_backward() or is_traced():
            self.recorder.coverage.add_unseen(IN_BACKWARD if is_in_backward() else TRACED)
            return function(*args, **kwargs)
        call, span = self.begin(api, args, kwargs, sys._getframe(depth + 1))
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            self.end_failed(call, span, error)
            raise
        # x[0] = y returns nothing and changes x: what comes out is x.
        self.end(api, call, span, args[0] if output is None and api.changes_first else output)
        return output

    def run_in_place(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective: what comes out is in the tensors that were given to it."""
        call, span = self.begin(api, args, kwargs, sys._getframe(2))
        try:
            with torch._C.DisableTorchFunction():
                output = function(*args, **kwargs)
        except BaseException as error:
            self.end_failed(call, span, error)
            raise
        is_running = hasattr(output, "wait")
        results = [value for value in (*args, *kwargs.values()) if isinstance(value, (torch.Tensor, list))]
        self.end(api, call, None, None if is_running else tuple(results), ASYNCHRONOUS if is_running else None)
        self.gradients.end(None, span, None, has_failed=True)  # a collective makes no nodes of its own
        return output

    def begin(
        self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> tuple[Call | None, Span | None]:
        """Before a call that was made at `frame`."""
        call: Call | None = None
        span: Span | None = None
        try:
            with torch._C.DisableTorchFunction():  # the user's subclasses do not see what capture looks at
                call = self.recorder.begin_api(api.stem, frame)
                if call is not None:
                    self.recorder.add_inputs(call, args, kwargs)
                if call is not None or self.recorder.records_modules:
                    span = self.gradients.begin(args, kwargs, wants_slots=call is not None and call.keeps_backward)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)
        return call, span

    def end(self, api: Api, call: Call | None, span: Span | None, output: Any, note: str | None = None) -> None:
        """After a call that returned `output`."""
        try:
            with torch._C.DisableTorchFunction():
                if api.may_write_unseen:
                    self.reader.doubt()
                if call is not None:
                    self.recorder.finish(call, output, note or api.note)
                self.gradients.end(call, span, output)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def end_failed(self, call: Call | None, span: Span | None, error: BaseException) -> None:
        try:
            self.gradients.end(call, span, None, has_failed=True)
            if call is not None:
                self.recorder.fail(call, error)
        except Exception as failure:
            self.recorder.note_failure("a call that raised", failure)


class CallMode(TorchFunctionMode):  # type: ignore[misc]
    """The mode that is on the stack while a window is open."""

    def __init__(self, runner: CallRunner) -> None:
        super().__init__()
        self._runner = runner
        self._find = runner.names.find
        self._recorder = runner.recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._runner.is_active:  # the window was closed by another thread, which cannot take this mode away
            remove_after_this_call(self)
            return func(*args, **(kwargs or {}))
        api = self._find(func)
        if api.is_recorded:
            return self._runner.run(api, func, args, kwargs or {})
        self._recorder.coverage.excluded += 1
        if api.exposes_memory and args and isinstance(args[0], torch.Tensor):
            self._runner.reader.values.expose(args[0])
        return func(*args, **(kwargs or {}))
