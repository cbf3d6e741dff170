"""Sees collectives and point-to-point calls, whoever imported their names when. Never makes one, and never waits for
one.

The functions of torch.distributed check each other by identity (`op is isend`), and programs import them by name. So
the functions stay what they are: most are wrappers that hold the real function in a closure, and what that closure
holds is exchanged for the time of the window. The others end in a method of ProcessGroup, which is recorded when
nothing above it was. A collective that was only started has no result yet: its record is written when the program waits
for it.
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
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace, run_all
from tensorprobe.capture.torch.api_name import COLLECTIVES, Api
from tensorprobe.capture.torch.call_mode import GRAPH_CAPTURED, TRACED, CallMode, CallRunner, is_traced
from tensorprobe.capture.torch.collective_argument import FUNCTIONS, describe_transfer, find_written, holds_tensors
from tensorprobe.capture.torch.content import storage_of
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.mode_stack import remove_mode
from tensorprobe.capture.torch.pending import Handles, Pending
from tensorprobe.capture.torch.received import Received

NEVER_WAITED = "asynchronous: nothing was seen to wait for it in this window, so its result is unknown"
UNSEEN_RESULT = "result of an asynchronous collective that nothing was seen to wait for"
UNSEEN_REDUCTION = "gradient reduction inside DistributedDataParallel"

_PREFIX = "Distributed"
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
    __file__,
)
# Methods of ProcessGroup, as they are called in records. Versions of torch have different ones.
_GROUP_METHODS = {
    "send": "isend",
    "recv": "irecv",
    "recv_anysource": "irecv",
    **dict.fromkeys(
        ("allgather", "allgather_coalesced", "all_gather_single", "_allgather_base", "alltoall", "alltoall_base"), ""
    ),
    **dict.fromkeys(("all_to_all_single", "allreduce", "barrier", "broadcast", "gather", "reduce", "scatter"), ""),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"), ""),
}
# What carries out the calls that a coalescing manager has collected.
_COALESCED_METHODS = (
    "allreduce_coalesced",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_end_coalescing",
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

    def install(self) -> Undo:
        """Patch what this version of torch has. Without API calls, only what tells that a result has come."""
        if not torch.distributed.is_available():
            return nothing
        undos = [self._patch_waiting_tensor()]
        if self._mode is not None:
            undos += [*self._patch_functions(), *self._patch_group(), *self._patch_work(), self._patch_reducer()]
            self._runner.run_collective = self.run_functional
        undos.append(self._end_window)
        return lambda: run_all(undos)

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
        self._attempt(api, lambda: self._begin(pending, *shown))
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
        reason = self._runner.why_unseen()
        if reason is not None or not api.is_recorded:
            self._count(api, reason)
            return function(*args, **kwargs)
        given = self._runner.begin_memory(api, args, kwargs)
        call, span = self._runner.begin(api, args, kwargs, find_caller(sys._getframe(1)))
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

    def _begin(self, pending: Pending, args: Any, kwargs: Any) -> None:
        self._settle_lost()
        if not self._runner.is_graph_captured and not is_traced():
            pending.received = Received(self._reader.undefined, pending.api, args, kwargs)
        if self._can_look(pending.api):
            pending.call = self._recorder.begin_api(pending.api.stem, find_caller(sys._getframe(1)))
            if pending.call is not None:
                self._recorder.add_inputs(pending.call, args, kwargs)

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

    def _settle(self, handle: Any) -> None:
        """Somebody has waited for a work or a future."""
        for pending in self._handles.find(handle):
            self._attempt(pending.api, partial(self._complete, pending))
        self._handles.discard(handle)

    def _settle_failed(self, handle: Any, error: BaseException) -> None:
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

    def _end_window(self) -> None:
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

    def _end_coalescing(self, work: Any) -> None:
        pending, self._coalesced = self._coalesced, []
        if is_work(work):
            self._handles.add(work, pending)
            return
        for item in pending:
            self._complete(item)

    # -- patches -------------------------------------------------------------------------------------------------------

    def _patch_functions(self) -> Iterator[Undo]:
        module = torch.distributed.distributed_c10d
        for name in COLLECTIVES:
            function = FUNCTIONS.get(name)
            if function is not None:
                yield self._patch_closure(name, function)
        broadcast = getattr(module, "_broadcast_coalesced", getattr(torch.distributed, "_broadcast_coalesced", None))
        if broadcast is not None:  # the name by which DistributedDataParallel sends its buffers
            api = self._runner.names.make(_PREFIX, "broadcast_coalesced")

            def broadcast_coalesced(*args: Any, **kwargs: Any) -> Any:
                return self.run(api, broadcast, args, kwargs)

            yield replace(torch.distributed, "_broadcast_coalesced", broadcast_coalesced)

    def _patch_closure(self, name: str, wrapper: Any) -> Undo:
        api = self._runner.names.make(_PREFIX, name)
        cell = find_cell(wrapper)
        if cell is None:
            return nothing
        original = cell.cell_contents

        def collective(*args: Any, **kwargs: Any) -> Any:
            return self.run(api, original, args, kwargs)

        collective.__name__ = name  # torch's wrapper logs by it
        cell.cell_contents = collective

        def undo() -> None:
            if cell.cell_contents is collective:
                cell.cell_contents = original

        return undo

    def _patch_group(self) -> Iterator[Undo]:
        group = torch._C._distributed_c10d.ProcessGroup
        for method, name in _GROUP_METHODS.items():
            if method in vars(group):
                yield self._patch_method(group, method, name or method)
        for method in _COALESCED_METHODS:
            if method in vars(group):
                yield self._patch_coalesced_method(group, method)

    def _patch_method(self, group: Any, method: str, name: str) -> Undo:
        api = self._runner.names.make(_PREFIX, name)
        original = getattr(group, method)

        def collective(self_group: Any, *args: Any, **kwargs: Any) -> Any:
            described = describe_transfer(method, args) if name != method and not kwargs else ()
            return self.run(api, original, (self_group, *args), kwargs, described or ())

        return replace(group, method, collective)

    def _patch_coalesced_method(self, group: Any, method: str) -> Undo:
        api = self._runner.names.make(_PREFIX, method)
        original = getattr(group, method)

        def carry_out(*args: Any, **kwargs: Any) -> Any:
            if not self._coalesced and method != "_end_coalescing":
                return self.run(api, original, args, kwargs)
            work = original(*args, **kwargs)
            self._attempt(api, lambda: self._end_coalescing(work))
            return work

        return replace(group, method, carry_out)

    def _patch_work(self) -> Iterator[Undo]:
        work, future = torch._C._distributed_c10d.Work, torch._C.Future
        for owner, name in ((work, "wait"), (work, "synchronize"), (future, "wait"), (future, "value")):
            if name in vars(owner):
                yield self._patch_wait(owner, name)
        is_completed, get_future = work.is_completed, work.get_future

        def look_whether_completed(handle: Any) -> Any:
            answer = is_completed(handle)
            if answer:
                self._settle(handle)
            return answer

        def get_watched_future(handle: Any) -> Any:
            answer = get_future(handle)
            pending = self._handles.find(handle)
            if pending:
                self._handles.add(answer, pending)
            return answer

        yield replace(work, "is_completed", look_whether_completed)
        yield replace(work, "get_future", get_watched_future)

    def _patch_wait(self, owner: Any, name: str) -> Undo:
        original = getattr(owner, name)

        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                answer = original(handle, *args, **kwargs)
            except BaseException as error:
                self._settle_failed(handle, error)
                raise
            self._settle(handle)
            return answer

        return replace(owner, name, wait)

    def _patch_waiting_tensor(self) -> Undo:
        """The tensor subclass that stands for the result of a functional collective, and waits when it is used."""
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        original = AsyncCollectiveTensor.trigger_wait

        def trigger_wait(tensor: Any) -> Any:
            was_waiting = not getattr(tensor, "completed", True)
            answer = original(tensor)
            if was_waiting:
                self.note_waited(answer)
            return answer

        return replace(AsyncCollectiveTensor, "trigger_wait", trigger_wait)

    def _patch_reducer(self) -> Undo:
        """DistributedDataParallel reduces gradients in C++, where nothing can be seen: it is counted."""
        reducer = getattr(torch.distributed, "Reducer", None)
        if reducer is None:
            return nothing
        original = reducer.prepare_for_backward

        def prepare_for_backward(*args: Any, **kwargs: Any) -> Any:
            if self._runner.is_active:
                self._recorder.coverage.add_unseen(UNSEEN_REDUCTION)
            return original(*args, **kwargs)

        return replace(reducer, "prepare_for_backward", prepare_for_backward)


def is_work(value: Any) -> bool:
    """Is it what a collective returns that was only started?"""
    return isinstance(value, torch._C._distributed_c10d.Work)


def find_cell(wrapper: Any) -> Any:
    """The cell in which a wrapper holds the function it wraps; None for a function that is no wrapper."""
    wrapped = getattr(wrapper, "__wrapped__", None)
    if wrapped is None:
        return None
    return next((cell for cell in wrapper.__closure__ or () if cell.cell_contents is wrapped), None)


def find_caller(frame: FrameType | None) -> FrameType | None:
    """Where the collective was called: the first frame that is not on the way from there to here."""
    while frame is not None:
        path = frame.f_code.co_filename
        is_collective = path.endswith(_COLLECTIVE_FILE) and frame.f_code.co_name in _FRAMES
        if not is_collective and not path.endswith(_PASSING_ON):
            break
        frame = frame.f_back
    return frame


@contextmanager
def unseen_by(mode: CallMode | None) -> Iterator[None]:
    """Inside, capture's own mode is off the stack, and the modes of others are on it."""
    restore = remove_mode(mode) if mode is not None else nothing
    try:
        yield
    finally:
        restore()
