"""Sees every public call of torch once, the outermost only. The user's function gets the very objects it was given.

While the handler runs, the mode is off: the reductions of capture itself are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from tensorprobe.capture.call import Call
from tensorprobe.capture.collector import collector
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.recursion import note_full_stack, room
from tensorprobe.capture.torch.api_name import Api, ApiNames
from tensorprobe.capture.torch.call_context import describe_context
from tensorprobe.capture.torch.function_node import name_node
from tensorprobe.capture.torch.generator import DROPOUTS, describe_generator, draw_mask, find_generator, is_drawing
from tensorprobe.capture.torch.gradient import GradientTracer, is_in_backward
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.hook_plan import Span
from tensorprobe.capture.torch.left_mode import remove_after_this_call
from tensorprobe.capture.torch.memory_tracer import Given, MemoryTracer, find_written
from tensorprobe.capture.torch.mode_stack import remove_mode
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.written import Written

IN_BACKWARD = "call inside backward"
TRACED = "call inside torch.jit.trace"
GRAPH_CAPTURED = "call inside a CUDA graph capture"
STOPPED = "stopped early: nothing that comes later is needed"
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__
# Functions of that file, by name or by argument, that call the user's; one of them is a `forward` among several.
_USER_FUNCTION_CALLERS = ("checkpoint", "recompute_fn", "run_function")
_STOP_RECOMPUTATION = "_StopRecomputationError"

CollectiveRunner = Callable[[Api, Any, tuple[Any, ...], dict[str, Any]], Any]


def is_traced() -> bool:
    """Is torch.jit.trace running? It would take what capture computes as part of the program."""
    return torch._C._get_tracing_state() is not None


def is_checkpointing(frame: FrameType) -> bool:
    """Is a call made by checkpointing itself, around the user's function?"""
    code = frame.f_code
    if code.co_filename != _CHECKPOINT_FILE:
        return False
    return not any(name in _USER_FUNCTION_CALLERS for name in (code.co_name, *code.co_varnames[:2]))


def end_raised(recorder: Recorder, call: Call, error: BaseException) -> None:
    """A call has raised: the user's exception, or the one by which a checkpoint ends its recomputation."""
    if type(error).__name__ == _STOP_RECOMPUTATION:
        recorder.break_off(call, STOPPED)
    else:
        recorder.fail(call, error)


def find_result(api: Api, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a call that returns nothing: what it was told to write to."""
    if api.changes_first:  # x[0] = y
        return args[0]
    is_told = kwargs.get("out") is not None or api.effect.declared
    return (tuple(find_written(api.effect, args, kwargs)) or None) if is_told else None


class CallRunner:
    """Runs a user's call between the notes that the recorder takes. Whatever goes wrong in the notes, the call runs,
    once."""

    def __init__(self, recorder: Recorder, reader: TorchReader, gradients: GradientTracer, names: ApiNames) -> None:
        self.recorder = recorder
        self.reader = reader
        self.gradients = gradients
        self.names = names
        self.memory = MemoryTracer(reader.undefined)
        self.run_collective: CollectiveRunner | None = None
        """Runs the collectives that are calls of torch.ops: their results are not there yet when they return."""
        self.mode: CallMode | None = None
        """What is on the stack of modes while the window is open; None where API calls are not recorded."""
        self.is_active = True
        """False once the window is closed: a patch that could not be taken back then passes calls through."""
        self.records_apis = recorder.records_apis
        self.is_graph_captured = False
        """A CUDA graph is being captured: what capture itself launched would become a part of it."""

    def why_unseen(self) -> str | None:
        """Why a call that is made now can only be counted; None if it can be recorded."""
        if is_in_backward():
            replay = self.recorder.recomputation.replay
            if replay is None or not (replay.is_exact or torch.is_grad_enabled()):
                return IN_BACKWARD
        if self.is_graph_captured:
            return GRAPH_CAPTURED
        return TRACED if is_traced() else None

    def run(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 1) -> Any:
        """`depth`: how many frames above the caller of this the user's call was made."""
        frame = sys._getframe(depth + 1)
        reason = self.why_unseen()
        if reason is not None or is_checkpointing(frame):
            return self._run_unseen(api, function, args, kwargs, None if is_checkpointing(frame) else reason)
        is_concerned = self.memory.is_concerned(api.effect)
        given = self.begin_memory(api, args, kwargs) if is_concerned else None
        before = collector.begin()
        call, span = self.begin(api, args, kwargs, frame)
        collector.end(before)
        function_call = call if api.is_function else None
        if function_call is not None:
            self.recorder.recomputation.open_function(function_call)
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            if function_call is not None:
                self.recorder.recomputation.close_function(function_call)
            self._note_writes(api, args, kwargs)
            self.end_failed(call, span, error)
            raise
        if function_call is not None:
            self.recorder.recomputation.close_function(function_call)
            name_node(output, function_call.backward_name, self.recorder.generation)
        if is_concerned:
            self.end_memory(api, given, function, output, call)
        result = find_result(api, args, kwargs) if output is None else output
        before = collector.begin()
        self.end(api, call, span, result, given=(args, kwargs))
        collector.end(before)
        if api.exposes_memory or not self.recorder.describes_every_call:
            self._note_writes(api, args, kwargs)
        return output

    def _run_unseen(
        self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str | None
    ) -> Any:
        if reason is not None:
            self.recorder.coverage.add_unseen(reason)
        return self.run_unrecorded(api, function, args, kwargs)

    def call_aside(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The stack is nearly used up: this runs as without a capture, and so does all that is in it."""
        note_full_stack(self.recorder)
        restore_mode = remove_mode(self.mode)
        try:
            with room.widened():
                return run(*args, **kwargs)
        finally:
            restore_mode()
            self.reader.values.forget()  # nobody saw what was done to them

    def run_aside(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is made where the stack is nearly used up."""
        room.widen()
        note_full_stack(self.recorder)
        return self.run_unrecorded(api, function, args, kwargs)

    def run_unrecorded(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is left out. What it writes is to be noticed all the same."""
        if not self.memory.is_concerned(api.effect):
            return self._run_noticed(api, function, args, kwargs)
        given = self.begin_memory(api, args, kwargs)
        output = self._run_noticed(api, function, args, kwargs)
        self.end_memory(api, given, function, output)
        return output

    def _run_noticed(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not api.exposes_memory and not api.may_write_unseen and self.recorder.describes_every_call:
            return function(*args, **kwargs)
        self._note_writes(api, args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            self._note_writes(api, args, kwargs)

    def _note_writes(self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before and after a call: what may change, or has changed, without a record that says so."""
        try:
            if api.may_write_unseen:
                self.reader.doubt()
            if api.exposes_memory:
                self.reader.expose(args)
            elif not self.recorder.describes_every_call:
                self.reader.observe((args, kwargs))
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def begin_memory(self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
        """Before a call: what of its arguments is undefined memory."""
        if not self.records_apis or self.is_graph_captured or is_traced():
            self.reader.undefined.forget()
            return None
        try:
            with torch._C.DisableTorchFunction():
                return self.memory.begin(api.effect, args, kwargs)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)
        return None

    def end_memory(self, api: Api, given: Given | None, function: Any, output: Any, call: Call | None = None) -> None:
        """After a call: what is undefined now."""
        if not self.records_apis or self.is_graph_captured or is_traced():
            return
        try:
            with torch._C.DisableTorchFunction():
                self.memory.end(api.effect, given, function, output)
                if given is not None and call is not None:
                    call.is_undefined = bool(given.read)
                    for tensor in given.written:
                        self.reader.values.overwrite(tensor, call.forward_name)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def begin(
        self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> tuple[Call | None, Span | None]:
        """Before a call that was made at `frame`."""
        call: Call | None = None
        span: Span | None = None
        try:
            with hidden():  # the user's subclasses do not see what capture looks at
                call = self.recorder.begin_api(api.stem, frame)
                if not self.recorder.describes_every_call:
                    self.reader.observe((args, kwargs))
                if call is not None:
                    call.is_pinned, call.is_passed_on = api.is_pinned, api.is_function
                    call.has_own_backward = api.is_function
                    self.recorder.add_context(call, describe_context())
                    self.recorder.add_inputs(call, args, kwargs)
                    if api.is_random and is_drawing(api.stem.rpartition(".")[2], args, kwargs):
                        self._note_draw(call, args, kwargs)
                if call is not None or self.recorder.records_modules:
                    span = self.gradients.begin(args, kwargs, wants_slots=call is not None and call.keeps_backward)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)
        return call, span

    def _note_draw(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a call that draws random numbers."""
        self.recorder.add_generator(call, describe_generator(args, kwargs))
        if self.recorder.stores_tensors(call):
            generator = find_generator(args, kwargs)
            call.drawn_from = (generator, generator.get_state()) if generator is not None else None

    def _keep_draw(self, api: Api, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After it. A state of the CPU's generator gives the same numbers everywhere; that of a device only there."""
        (generator, state), call.drawn_from = call.drawn_from, None
        try:
            self._add_draw(api, call, generator, state, args, kwargs)
        except Exception as error:  # the call itself is recorded all the same
            self.recorder.note_failure(api.stem, error)

    def _add_draw(
        self,
        api: Api,
        call: Call,
        generator: torch.Generator,
        state: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if state.device.type == "cpu" and generator.device.type == "cpu":
            self.recorder.add_draw(call, "generator_state", state)
        elif (op := api.stem.rpartition(".")[2]) in DROPOUTS:
            mask = draw_mask(generator, state, op, args, kwargs)
            if mask is not None:
                self.recorder.add_draw(call, "mask", mask)

    def end(
        self,
        api: Api,
        call: Call | None,
        span: Span | None,
        output: Any,
        note: str | None = None,
        given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
    ) -> None:
        """After a call that was `given` its arguments and returned `output`."""
        try:
            with hidden():
                if api.may_write_unseen:
                    self.reader.doubt()
                if call is not None and call.drawn_from is not None:
                    self._keep_draw(api, call, *given)
                if api.written is not None:
                    self._note_written(api.written, call, *given)
                if call is not None:
                    self.recorder.finish(call, output, note or api.note)
                self.gradients.end(call, span, output)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def _note_written(self, written: Written, call: Call | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a call that writes to what it does not return: whoever looks at it later is told who wrote it."""
        found = dict(written.iter_tensors(args, kwargs))
        for tensor in found.values():
            self.reader.values.overwrite(tensor, call.forward_name if call is not None else None)
        if call is not None and found:
            self.recorder.add_written(call, found)

    def end_failed(self, call: Call | None, span: Span | None, error: BaseException) -> None:
        try:
            self.gradients.end(call, span, None, has_failed=True)
            if call is not None:
                end_raised(self.recorder, call, error)
        except Exception as failure:
            self.recorder.note_failure("a call that raised", failure)


class CallMode(TorchFunctionMode):  # type: ignore[misc]
    """The mode that is on the stack while a window is open."""

    def __init__(self, runner: CallRunner) -> None:
        super().__init__()
        self._runner = runner
        self.hidden_threads: set[int] = set()
        """In these it was taken away for a time, and is not to be entered again before that is over."""
        self._find = runner.names.find
        self._recorder = runner.recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._runner.is_active:  # the window was closed by another thread, which cannot take this mode away
            remove_after_this_call(self)
            return func(*args, **(kwargs or {}))
        api = self._find(func)
        if room.is_short():
            return self._runner.run_aside(api, func, args, kwargs or {})
        if api.is_functional_collective and self._runner.run_collective is not None:
            return self._runner.run_collective(api, func, args, kwargs or {})
        if api.is_recorded:
            return self._runner.run(api, func, args, kwargs or {})
        self._recorder.coverage.excluded += 1
        return self._runner.run_unrecorded(api, func, args, kwargs or {})


class WatchMode(CallMode):
    """Where API calls are not recorded: notices only what may change memory unseen, inside backward passes."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._runner.is_active:
            return func(*args, **(kwargs or {}))
        return self._runner.run_unrecorded(self._find(func), func, args, kwargs or {})
