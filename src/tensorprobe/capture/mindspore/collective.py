"""Sees collectives and point-to-point calls. Never makes one, and never waits for one.

What such a call is given and what the same tensors hold afterwards are its input and output: most of them write into
their arguments and return nothing. One that was only started has no result yet: its record is written when the program
waits for it, at the latest when the window closes, and then it says that its result is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType
from typing import Any

from mindspore import Tensor, ops

from tensorprobe.capture.call import Call
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.api_name import Api
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.hiding import hidden, hiding
from tensorprobe.capture.patch import replace, run_all

NEVER_WAITED = "asynchronous: nothing was seen to wait for it in this window, so its result is unknown"
UNSEEN_RESULT = "result of an asynchronous collective that nothing was seen to wait for"
_PRIMITIVES = "mindspore.ops.operations.comm_ops"


@dataclass(slots=True)
class Pending:
    """A collective that was started, with what somebody may wait for. Held until then, or until the window closes."""

    api: Api
    call: Call | None
    results: list[Any]
    handle: Any


class Collectives:
    """Runs collectives between the notes that the recorder takes."""

    def __init__(self, runner: CallRunner) -> None:
        self._runner = runner
        self._recorder = runner.recorder
        self._pending: dict[int, Pending] = {}
        """By the address of what somebody may wait for."""
        self._watched: dict[type, Undo] = {}

    def install(self) -> None:
        self._runner.run_collective = self.run

    def remove(self) -> None:
        """Around compiled regions, and for good when the window is closed."""
        if self._runner.is_active:
            return
        self._runner.run_collective = None
        run_all(list(self._watched.values()))
        self._watched.clear()
        for pending in list(self._pending.values()):
            self._attempt(pending.api, partial(self._complete_unknown, pending))

    def run(
        self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> Any:
        """Run a collective that was called at `frame`. Those inside a backward pass are recorded too."""
        if not api.is_recorded:
            self._recorder.coverage.excluded += 1
            return function(*args, **kwargs)
        call = self._begin(api, args, kwargs, frame)
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            self._attempt(api, partial(self._fail, call, error))
            raise
        returned = output if isinstance(output, tuple) else (output,)
        results = [value for value in returned if holds_tensors(value)]
        if not results:  # it writes into what it was given
            results = [value for value in (*args, *kwargs.values()) if holds_tensors(value)]
        self._attempt(api, lambda: self._runner.memory.define_all((args, kwargs)))
        self._attempt(api, lambda: self._end(Pending(api, call, results, find_handle(output))))
        return output

    def _begin(self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> Call | None:
        call: Call | None = None

        def begin() -> None:
            nonlocal call
            call = self._recorder.begin_api(api.stem, frame)
            if call is not None:
                self._recorder.add_inputs(call, args, kwargs)

        self._attempt(api, begin)
        return call

    def _end(self, pending: Pending) -> None:
        if pending.handle is None:
            self._complete(pending)
        elif self._watch(type(pending.handle)):
            self._pending[id(pending.handle)] = pending
        else:
            self._complete_unknown(pending)

    def _complete(self, pending: Pending) -> None:
        """Write the record, with what the tensors hold now."""
        if pending.call is not None:
            self._recorder.finish(pending.call, tuple(pending.results), pending.api.note)

    def _complete_unknown(self, pending: Pending) -> None:
        self._pending.pop(id(pending.handle), None)
        if pending.call is not None:
            self._recorder.coverage.add_unseen(UNSEEN_RESULT)
            self._recorder.finish(pending.call, (), NEVER_WAITED)

    def _fail_pending(self, error: BaseException, pending: Pending) -> None:
        self._fail(pending.call, error)

    def _fail(self, call: Call | None, error: BaseException) -> None:
        if call is not None:
            self._recorder.fail(call, error)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _watch(self, kind: type) -> bool:
        """Notice when somebody waits for a handle of this type; False for one that cannot be patched."""
        owner = next((owner for owner in kind.__mro__ if "wait" in vars(owner)), kind)
        if owner in self._watched:
            return True
        try:
            self._watched[owner] = replace(owner, "wait", self._make_wait(vars(owner)["wait"]))
        except (KeyError, TypeError):
            return False
        return True

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                answer = original(handle, *args, **kwargs)
            except BaseException as error:
                self._settle(handle, partial(self._fail_pending, error))
                raise
            self._settle(handle, self._complete)
            return answer

        return wait

    def _settle(self, handle: Any, action: Callable[[Pending], None]) -> None:
        pending = self._pending.pop(id(handle), None)
        if pending is not None:
            self._attempt(pending.api, partial(action, pending))

    def _attempt(self, api: Api, action: Callable[[], None]) -> None:
        """What goes wrong inside capture does not reach the user's program."""
        try:
            with hidden():
                action()
        except Exception as error:
            self._recorder.note_failure(api.stem, error)


class CollectivePrimitives:
    """Functions in the place of `__call__` of `ops.AllReduce` and its kin, whoever holds such a primitive. What they
    return is their result, with a gradient like that of any other call."""

    def __init__(self, runner: CallRunner) -> None:
        self._runner = runner
        self._undo: Undo | None = None

    def install(self) -> None:
        if self._undo is None:
            undos = [replace(kind, "__call__", self._make_call(kind)) for kind in collective_primitives()]
            self._undo = partial(run_all, undos)

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _make_call(self, kind: Any) -> Callable[..., Any]:
        runner, original = self._runner, kind.__call__
        api = dataclasses.replace(runner.names.make("Distributed", kind.__name__), is_collective=False)

        def call_primitive(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            if hiding.depth or not runner.is_active:
                return original(primitive, *args, **kwargs)
            with hidden():
                return runner.run(api, original.__get__(primitive), args, kwargs)

        return call_primitive


@cache
def collective_primitives() -> list[Any]:
    """The classes of the primitives that move tensors between ranks."""
    kinds = [value for name, value in vars(ops).items() if isinstance(value, type) and not name.startswith("_")]
    return [kind for kind in kinds if kind.__module__ == _PRIMITIVES and issubclass(kind, ops.Primitive)]


def find_handle(output: Any) -> Any:
    """What a program may wait for, in what a collective has returned; None if the collective is over."""
    for value in output if isinstance(output, (list, tuple)) else (output,):
        if not isinstance(value, Tensor) and callable(getattr(value, "wait", None)):
            return value
    return None


def holds_tensors(value: Any) -> bool:
    """Is it a tensor, or a list with one in it?"""
    if isinstance(value, (list, tuple)):
        return any(holds_tensors(item) for item in value)
    return isinstance(value, Tensor)
