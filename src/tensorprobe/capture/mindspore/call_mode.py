"""Sees the operations that no patch saw: those of functions that a program keeps in objects of its own, and of
Primitive objects outside the model. MindSpore shows them by the name of their kernel, one by one.

They are recorded as `Primitive.MatMul.0` where the model was given to `start`, and counted where it was not.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Any

from mindspore._c_expression import typing

from tensorprobe.capture.mindspore.api_name import PRIMITIVE, Api
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.hiding import hidden, hiding
from tensorprobe.capture.mindspore.primitive_call import with_settings
from tensorprobe.capture.recursion import room

try:
    from mindspore._c_expression import _DispatchGuardStack as _Modes
    from mindspore.utils import MsDispatchMode
except ImportError:  # before MindSpore 2.9
    MsDispatchMode = None

logger = logging.getLogger("tensorprobe")

NOT_NAMED = "operation of a Primitive object, or of a function that the program keeps: start(model) records them"


class CallMode:
    """The mode that is entered while a window is open, where this version of MindSpore has one.

    Leaving a mode takes the topmost one off the stack, whosever it is. Where the program has entered one since, ours
    stays below it and only passes calls on, and takes up its work in the next window.
    """

    def __init__(self, runner: CallRunner, *, is_recording: bool) -> None:
        self.is_recording = is_recording
        """False: operations are only counted."""
        self.is_resting = True
        self._mode = None if MsDispatchMode is None else _make_mode(runner, self)
        self._place = 0
        """How many modes there are up to this one; 0 while it is not among them."""
        if self._mode is None:
            _say_what_is_not_counted()

    def install(self) -> None:
        self.is_resting = False
        if self._mode is not None and not self._place:
            self._mode.__enter__()
            self._place = _Modes.depth()

    def remove(self) -> None:
        self.is_resting = True
        if self._mode is None or _Modes.depth() > self._place:
            return
        if _Modes.depth() == self._place and self._place:
            self._mode.__exit__(None, None, None)
        self._place = 0


@cache
def _say_what_is_not_counted() -> None:
    logger.warning(
        "this version of MindSpore does not show single operations: those of Primitive objects outside the model, and "
        "of functions that the program keeps in objects of its own, are neither recorded nor counted"
    )


def describe_kernel(runner: CallRunner, api: Api, primitive: Any, args: tuple[Any, ...]) -> tuple[Api, tuple[Any, ...]]:
    """A kernel with what its primitive was made with, and its arguments with the dtype that it knows by a number."""
    try:
        if primitive is not None:
            return with_settings(api, primitive, runner.reader), args
        place = api.dtype_place
        if place is not None and place < len(args) and type(args[place]) is int:
            return api, (*args[:place], typing.type_id_to_type(args[place]), *args[place + 1 :])
    except Exception as error:
        runner.recorder.note_failure(api.stem, error)
    return api, args


def _make_mode(runner: CallRunner, owner: CallMode) -> Any:
    apis: dict[str, Api] = {}

    def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if runner.why_unseen() is not None:  # the operations of a backward pass are those of the framework
            return function(*args, **kwargs)
        name = str(function.name)
        api = apis.get(name)
        if api is None:
            api = apis[name] = runner.names.make(PRIMITIVE, name)
        if not api.is_recorded:
            runner.recorder.coverage.excluded += 1
            return function(*args, **kwargs)
        if not owner.is_recording:
            runner.recorder.coverage.add_unseen(NOT_NAMED)
            return function(*args, **kwargs)
        # Old primitives come as themselves, their name and their arguments.
        is_old = len(args) == 3 and args[1] == name and isinstance(args[2], tuple)
        given = args[2] if is_old else args
        read = runner.begin_memory(api, given, kwargs)
        made, named = describe_kernel(runner, api, args[0] if is_old else None, given)
        call, span = runner.begin(made, named, kwargs, sys._getframe(2))
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            runner.end_failed(call, span, error)
            raise
        runner.end_memory(api, read, given, output, call)
        # Several results come as a list here, and as a tuple to the program.
        runner.end_later(api, call, span, tuple(output) if isinstance(output, list) else output)
        return output

    class Mode(MsDispatchMode):  # type: ignore[misc]
        def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
            if hiding.depth or owner.is_resting or not runner.is_active or room.is_short():
                return func(*args, **(kwargs or {}))
            with hidden():
                return run(func, args, kwargs or {})

    return Mode()
