"""Where collectives are seen. The functions of torch.distributed check each other by identity (`op is isend`), and
programs import them by name, so the functions stay what they are: most are wrappers that hold the real function in a
closure, and what that closure holds is exchanged for the time of the window. The others end in a method of
ProcessGroup, which is recorded when nothing above it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace, run_all
from tensorprobe.capture.torch.api_name import COLLECTIVES
from tensorprobe.capture.torch.call_mode import CallRunner
from tensorprobe.capture.torch.collective import Collectives
from tensorprobe.capture.torch.collective_argument import FUNCTIONS, describe_transfer
from tensorprobe.capture.torch.communication import describe_group

UNSEEN_REDUCTION = "gradient reduction inside DistributedDataParallel"

_PREFIX = "Distributed"
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


class CollectivePatches:
    """Installs what leads collectives to those that record them."""

    def __init__(self, collectives: Collectives, runner: CallRunner) -> None:
        self._collectives = collectives
        self._runner = runner

    def install(self) -> Undo:
        """Patch what this version of torch has. Without API calls, only what tells that a result has come."""
        if not torch.distributed.is_available():
            return nothing
        undos = [self._patch_waiting_tensor()]
        if self._runner.mode is not None:
            undos += [*self._patch_functions(), *self._patch_group(), *self._patch_work(), self._patch_reducer()]
            self._runner.run_collective = self._collectives.run_functional
        undos.append(self._collectives.end_window)
        return lambda: run_all(undos)

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
                return self._collectives.run(api, broadcast, args, kwargs)

            yield replace(torch.distributed, "_broadcast_coalesced", broadcast_coalesced)

    def _patch_closure(self, name: str, wrapper: Any) -> Undo:
        api = self._runner.names.make(_PREFIX, name)
        cell = find_cell(wrapper)
        if cell is None:
            return nothing
        original = cell.cell_contents

        def collective(*args: Any, **kwargs: Any) -> Any:
            return self._collectives.run(api, original, args, kwargs)

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
            return self._collectives.run(api, original, (self_group, *args), kwargs, described or ())

        return replace(group, method, collective)

    def _patch_coalesced_method(self, group: Any, method: str) -> Undo:
        api = self._runner.names.make(_PREFIX, method)
        original = getattr(group, method)

        def carry_out(*args: Any, **kwargs: Any) -> Any:
            if not self._collectives.is_collecting and method != "_end_coalescing":
                return self._collectives.run(api, original, args, kwargs)
            work = original(*args, **kwargs)
            self._collectives.carry_out(api, work)
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
                self._collectives.settle(handle)
            return answer

        def get_watched_future(handle: Any) -> Any:
            answer = get_future(handle)
            self._collectives.follow(handle, answer)
            return answer

        yield replace(work, "is_completed", look_whether_completed)
        yield replace(work, "get_future", get_watched_future)

    def _patch_wait(self, owner: Any, name: str) -> Undo:
        original = getattr(owner, name)

        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                answer = original(handle, *args, **kwargs)
            except BaseException as error:
                self._collectives.settle_failed(handle, error)
                raise
            self._collectives.settle(handle)
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
                self._collectives.note_waited(answer)
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
                self._note_reduction(sys._getframe(1).f_locals.get("self"))
            return original(*args, **kwargs)

        return replace(reducer, "prepare_for_backward", prepare_for_backward)

    def _note_reduction(self, model: Any) -> None:
        """`model`: the DistributedDataParallel whose gradients the next backward pass will average."""
        recorder = self._runner.recorder
        recorder.coverage.add_unseen(UNSEEN_REDUCTION)
        try:
            names = self._runner.reader.parameter_names
            parameters = [names[id(item)] for item in model.parameters() if id(item) in names]
            group, records = describe_group(model.process_group), recorder.coverage.recorded
            recorder.backward_passes.add_reduction({"group": group, "parameters": parameters, "records": records})
        except Exception as error:
            recorder.note_failure("the gradients that DistributedDataParallel averages", error)


def find_cell(wrapper: Any) -> Any:
    """The cell in which a wrapper holds the function it wraps; None for a function that is no wrapper."""
    wrapped = getattr(wrapper, "__wrapped__", None)
    if wrapped is None:
        return None
    return next((cell for cell in wrapper.__closure__ or () if cell.cell_contents is wrapped), None)
