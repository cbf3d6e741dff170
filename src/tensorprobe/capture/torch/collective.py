"""Sees collectives and point-to-point calls, whoever imported their names when. Never makes one, and never waits for
one.

A collective that was only started has no result yet: its record is written when the program waits for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch

from tensorprobe.capture.call import Call
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.torch.api_name import COLLECTIVES, Api
from tensorprobe.capture.torch.call_mode import GRAPH_CAPTURED, TRACED, CallMode, CallRunner, is_traced
from tensorprobe.capture.torch.collective_argument import find_written, holds_tensors
from tensorprobe.capture.torch.communication import describe_exchange
from tensorprobe.capture.torch.content import storage_of
from tensorprobe.capture.torch.function_node import find_running
from tensorprobe.capture.torch.gradient import is_in_backward
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.mode_stack import remove_mode
from tensorprobe.capture.torch.pending import Handles, Pending
from tensorprobe.capture.torch.received import Received

NEVER_WAITED = "asynchronous: nothing was seen to wait for it in this window, so its result is unknown"
UNSEEN_RESULT = "result of an asynchronous collective that nothing was seen to wait for"

_WAIT = ".wait_tensor"
_WRAP = "._wrap_tensor_autograd"
_COLLECTIVE_FILE = "/torch/distributed/distributed_c10d.py"
_PASSING_ON = (  # files that only bring the call of somebody else here
    "/torch/distributed/c10d_logger.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/_ops.py",
    "/torch/overrides.py",
    "/typing_extensions.py",
    "/tensorprobe/capture/torch/call_mode.py",
    "/tensorprobe/capture/torch/collective_patch.py",
    __file__,
)
_FRAMES = frozenset({*COLLECTIVES, "isend", "irecv", "batch_isend_irecv"})
"""Functions of torch.distributed that are what the program called; others there (of objects) call them in turn."""


class Collectives:
    """Runs collectives between the notes that the recorder takes."""

    def __init__(self, runner: CallRunner, mode: CallMode | None) -> None:
        self._runner = runner
        self._mode = mode
        self._recorder = runner.recorder
        self._reader = runner.reader
        self._local = threading.local()
        self._handles = Handles()
        self._open: dict[Pending, None] = {}
        """All that have no record yet, in the order in which they were started."""
        self._coalesced: list[Pending] = []
        self._by_storage: dict[int, Pending] = {}
        """Functional collectives, by the memory of their result."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def run(
        self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], described: tuple[Any, ...] = ()
    ) -> Any:
        """Run a collective, and record it unless it is part of another. `described`: what to record as arguments, where
        they are not what the program wrote."""
        if not self._runner.is_active or getattr(self._local, "is_inside", False):
            return function(*args, **kwargs)
        pending = Pending(api)
        shown = described or (args, kwargs)
        group = args[0] if described else None
        self._attempt(api, lambda: self._begin(pending, shown, group))
        is_coalesced = self._is_coalescing()
        self._local.is_inside = True
        try:
            with unseen_by(self._mode):
                output = function(*args, **kwargs)
        except BaseException as error:
            self._attempt(api, partial(self._fail, pending.call, error))
            raise
        finally:
            self._local.is_inside = False
        self._attempt(api, lambda: self._end(pending, shown, output, is_coalesced))
        return output

    def run_functional(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective of torch.ops: it returns a tensor that is filled when somebody has waited for it."""
        if api.stem.endswith(_WAIT):
            output = function(*args, **kwargs)
            if args:
                self.note_waited(args[0])
            return output
        if api.stem.endswith(_WRAP):  # puts the tensor that waits around the result; there is nothing in it yet
            return function(*args, **kwargs)
        owner = self._find_owner()
        reason = self._runner.why_unseen() if owner is None else None
        if reason is not None or not api.is_recorded:
            self._count(api, reason)
            return function(*args, **kwargs)
        given = self._runner.begin_memory(api, args, kwargs)
        with self._recorder.recomputation.set_aside(owner is not None):
            call, span = self._runner.begin(api, args, kwargs, find_caller(sys._getframe(1)))
        self._attempt(api, lambda: self._add_communication(call, api, (args, kwargs), None, owner))
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            self._runner.end_failed(call, span, error)
            raise
        self._runner.end_memory(api, given, function, output, call)
        self._attempt(api, lambda: self._runner.gradients.end(call, span, output))
        self._attempt(api, lambda: self._expect_tensors(api, call, output))
        return output

    def note_waited(self, tensor: Any) -> None:
        """Somebody has waited for the result of a functional collective."""
        with hidden():
            self._attempt(None, lambda: self._reader.fill_waiting(tensor))
            pending = self._by_storage.pop(storage_of(tensor), None)
            if pending is not None:
                self._attempt(pending.api, lambda: self._complete(pending))

    def _can_look(self, api: Api) -> bool:
        """Is this collective recorded, or only counted? Those inside a backward pass are made by the framework, and
        are recorded."""
        if api.is_recorded and not self._runner.is_graph_captured and not is_traced():
            return True
        self._count(api, GRAPH_CAPTURED if self._runner.is_graph_captured else TRACED)
        return False

    def _count(self, api: Api, reason: str | None) -> None:
        if api.is_recorded and reason is not None:
            self._recorder.coverage.add_unseen(reason)
        else:
            self._recorder.coverage.excluded += 1

    def _begin(self, pending: Pending, given: tuple[Any, Any], group: Any) -> None:
        args, kwargs = given
        self._settle_lost()
        if not self._runner.is_graph_captured and not is_traced():
            pending.received = Received(self._reader.undefined, pending.api, args, kwargs)
        if self._can_look(pending.api):
            owner = self._find_owner()
            with self._recorder.recomputation.set_aside(owner is not None or is_own_in_backward(self._runner)):
                pending.call = self._recorder.begin_api(pending.api.stem, find_caller(sys._getframe(1)))
            if pending.call is not None:
                self._add_communication(pending.call, pending.api, (args, kwargs), group, owner)
                self._recorder.add_inputs(pending.call, args, kwargs)

    def _find_owner(self) -> str | None:
        """The backward record of the autograd Function whose backward makes the call. What it repeats of its forward is
        called with gradients."""
        if not is_in_backward() or torch.is_grad_enabled():
            return None
        return find_running(self._recorder.generation)

    def _add_communication(self, call: Call | None, api: Api, given: Any, group: Any, owner: str | None) -> None:
        """What a replay needs to know to do it together with the other ranks."""
        if call is None or call.original is not None:
            return
        context: dict[str, Any] = {"inside": owner} if owner is not None else {}
        if not torch.is_grad_enabled():
            context["grad_enabled"] = False
        args, kwargs = given
        communication = describe_exchange(api.stem, args, kwargs, group, self._recorder.counts.next)
        if communication is not None:
            context["collective"] = {**communication, "started": self._recorder.coverage.recorded}
        self._recorder.add_context(call, context)

    def _end(self, pending: Pending, given: tuple[Any, Any], output: Any, is_coalesced: bool) -> None:
        self._reader.doubt()  # it writes into what it was given, without a new version
        args, kwargs = given
        results = [value for value in (*args, *kwargs.values()) if holds_tensors(value)]
        pending.hold(results, list(find_written(pending.api, args, kwargs)))
        if is_coalesced:
            self._open[pending] = None
            self._coalesced.append(pending)
        elif is_work(output):
            self._open[pending] = None
            self._handles.add(output, [pending])
        else:
            self._complete(pending)

    def _expect_tensors(self, api: Api, call: Call | None, output: Any) -> None:
        self._reader.doubt()
        tensors = [output] if isinstance(output, torch.Tensor) else list(output)
        pending = Pending(api, call)
        pending.hold(tensors, [])
        self._open[pending] = None
        for tensor in tensors:
            self._by_storage[storage_of(tensor)] = pending

    def _fail(self, call: Call | None, error: BaseException) -> None:
        self._reader.doubt()
        if call is not None:
            self._recorder.fail(call, error)

    # -- results -------------------------------------------------------------------------------------------------------

    def settle(self, handle: Any) -> None:
        """Somebody has waited for a work or a future."""
        for pending in self._handles.find(handle):
            self._attempt(pending.api, partial(self._complete, pending))
        self._handles.discard(handle)

    def settle_failed(self, handle: Any, error: BaseException) -> None:
        for pending in self._handles.find(handle):
            if pending in self._open:
                del self._open[pending]
                self._attempt(pending.api, partial(self._fail, pending.call, error))
        self._handles.discard(handle)

    def _complete(self, pending: Pending) -> None:
        """Write the record, with what the tensors hold now."""
        self._open.pop(pending, None)
        results, written, call = pending.results, pending.written, pending.call
        if results is None:
            return
        pending.let_go()
        self._define(pending)
        self._reader.doubt()
        if call is None:
            return
        for tensor in written:
            self._reader.values.overwrite(tensor, call.forward_name)
        self._recorder.finish(call, tuple(results), pending.api.note)

    @staticmethod
    def _define(pending: Pending) -> None:
        """What it has received is data from now on."""
        if pending.received is not None:
            pending.received.define()

    def _settle_lost(self) -> None:
        """Those that nobody can wait for any more."""
        for pending in [pending for pending in self._open if pending.results is None]:
            self._complete_unknown(pending)

    def _complete_unknown(self, pending: Pending) -> None:
        del self._open[pending]
        pending.let_go()
        self._define(pending)
        if pending.call is not None:
            self._recorder.coverage.add_unseen(UNSEEN_RESULT)
            self._recorder.finish(pending.call, (), NEVER_WAITED)

    def end_window(self) -> None:
        """Nothing is watched any more: what has not been waited for by now is written as it is."""
        self._runner.run_collective = None
        self._handles.clear()
        self._coalesced.clear()
        self._by_storage.clear()
        with hidden():
            for pending in list(self._open):
                self._attempt(pending.api, partial(self._complete_unknown, pending))

    def _attempt(self, api: Api | None, action: Callable[[], None]) -> None:
        """What goes wrong here does not reach the program."""
        try:
            with hidden():
                action()
        except Exception as error:
            self._recorder.note_failure(api.stem if api is not None else "the result of a collective", error)

    # -- coalescing ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_coalescing() -> bool:
        """Is a coalescing manager open, which carries out what is called in it at its end?"""
        world = getattr(torch.distributed.distributed_c10d, "_world", None)
        return bool(getattr(world, "pg_coalesce_state", None))

    @property
    def is_collecting(self) -> bool:
        """Have calls been collected that are carried out later?"""
        return bool(self._coalesced)

    def carry_out(self, api: Api, work: Any) -> None:
        """What was collected is carried out now; `work` is what can be waited for."""
        self._attempt(api, lambda: self._end_coalescing(work))

    def follow(self, handle: Any, other: Any) -> None:
        """Who waits for `other` waits for what `handle` stands for."""
        pending = self._handles.find(handle)
        if pending:
            self._handles.add(other, pending)

    def _end_coalescing(self, work: Any) -> None:
        pending, self._coalesced = self._coalesced, []
        if is_work(work):
            self._handles.add(work, pending)
            return
        for item in pending:
            self._complete(item)


def is_work(value: Any) -> bool:
    """Is it what a collective returns that was only started?"""
    return isinstance(value, torch._C._distributed_c10d.Work)


def find_caller(frame: FrameType | None) -> FrameType | None:
    """Where the collective was called: the first frame that is not on the way from there to here."""
    while frame is not None:
        path = frame.f_code.co_filename
        is_collective = path.endswith(_COLLECTIVE_FILE) and frame.f_code.co_name in _FRAMES
        if not is_collective and not path.endswith(_PASSING_ON):
            break
        frame = frame.f_back
    return frame


def is_own_in_backward(runner: CallRunner) -> bool:
    """Is a call that is made now one of the backward itself, not the repetition of one of the forward?"""
    replay = runner.recorder.recomputation.replay
    return replay is not None and not (replay.is_exact or torch.is_grad_enabled())


@contextmanager
def unseen_by(mode: CallMode | None) -> Iterator[None]:
    """Inside, capture's own mode is off the stack, and the modes of others are on it."""
    restore = remove_mode(mode) if mode is not None else nothing
    try:
        yield
    finally:
        restore()
