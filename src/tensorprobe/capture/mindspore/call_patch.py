"""Sees every public call of MindSpore once, the outermost only. The user's function gets the very objects it was given.

Functions are replaced where programs look them up: in `mindspore.ops`, `mindspore.mint`, on `Tensor`, and under the
names by which modules of the program, and MindSpore's own layers, have imported them. While a call runs, and while
capture itself computes, calls are not recorded.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import update_wrapper
from types import FrameType
from typing import Any

from tensorprobe.capture.call import Call
from tensorprobe.capture.failure import ProgramError
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.api_name import Api, ApiNames, ApiOwner
from tensorprobe.capture.mindspore.engine import is_in_backward
from tensorprobe.capture.mindspore.executor import is_grad_switched_off
from tensorprobe.capture.mindspore.generator import describe_generator
from tensorprobe.capture.mindspore.gradient import GradientTracer
from tensorprobe.capture.mindspore.hiding import hidden, hiding
from tensorprobe.capture.mindspore.hook_plan import Span
from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.mindspore.undefined_memory import MemoryTracer
from tensorprobe.capture.patch import replace_all
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.recursion import note_full_stack, room

IN_BACKWARD = "call inside backward"
# Modules of MindSpore whose names are looked through for functions that were imported early: its layers.
_LAYERS = ("mindspore.nn.", "mindspore.mint.nn.")


CollectiveRunner = Callable[[Api, Any, tuple[Any, ...], dict[str, Any], FrameType | None], Any]


class CallRunner:
    """Runs a user's call between the notes that the recorder takes. Whatever goes wrong in the notes, the call runs,
    once."""

    def __init__(self, recorder: Recorder, reader: MindSporeReader, gradients: GradientTracer, names: ApiNames) -> None:
        self.recorder = recorder
        self.reader = reader
        self.gradients = gradients
        self.names = names
        self.memory = MemoryTracer(reader.undefined)
        self.run_collective: CollectiveRunner | None = None
        """Runs the calls that write into their arguments, or whose results are not there yet when they return."""
        self.is_active = True
        """False once the window is closed: a patch that could not be taken back then passes calls through."""
        self.records_apis = recorder.records_apis

    def why_unseen(self) -> str | None:
        """Why a call that is made now can only be counted; None if it can be recorded."""
        return IN_BACKWARD if is_in_backward() else None

    def run(self, api: Api, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 1) -> Any:
        """`depth`: how many frames above the caller of this the user's call was made."""
        if room.is_short():
            room.widen()
            note_full_stack(self.recorder)
            return function(*args, **kwargs)
        if api.is_collective and self.run_collective is not None:
            return self.run_collective(api, function, args, kwargs, sys._getframe(depth + 1))
        reason = self.why_unseen()
        read = self.begin_memory(api, args, kwargs)
        if reason is not None or not api.is_recorded:
            self._count(reason)
            output = function(*args, **kwargs)
            self.end_memory(api, read, args, output)
            return output
        call, span = self.begin(api, args, kwargs, sys._getframe(depth + 1))
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            self.end_failed(call, span, error)
            raise
        self.end_memory(api, read, args, output, call)
        # x[0] = y returns nothing and changes x: what comes out is x.
        self.end(api, call, span, args[0] if output is None and api.changes_first else output)
        return output

    def _count(self, reason: str | None) -> None:
        if reason is not None:
            self.recorder.coverage.add_unseen(reason)
        else:
            self.recorder.coverage.excluded += 1

    def begin_memory(self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Before a call: what it reads of undefined memory."""
        try:
            return self.memory.begin(api, args, kwargs) if self.records_apis else []
        except Exception as error:
            self.recorder.note_failure(api.stem, error)
        return []

    def end_memory(
        self, api: Api, read: list[Any], args: tuple[Any, ...], output: Any, call: Call | None = None
    ) -> None:
        """After a call: what is undefined now."""
        try:
            if self.records_apis:
                self.memory.end(api, read, args, output)
            if call is not None:
                call.is_undefined = bool(read)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def begin(
        self, api: Api, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> tuple[Call | None, Span | None]:
        """Before a call that was made at `frame`."""
        call: Call | None = None
        span: Span | None = None
        if api.caller is not None and self.recorder.records_layers:
            self.recorder.coverage.excluded += 1  # an optimizer that is compiled
            return None, None
        try:
            with hidden():
                call = self.recorder.begin_api(api.stem, frame)
                if call is not None:
                    if api.caller is not None and call.stack is not None:
                        call.stack = replace(call.stack, caller=api.caller)
                    self.recorder.add_inputs(call, args, kwargs)
                    self.recorder.add_settings(call, api.settings, api.tuples)
                    if is_grad_switched_off():
                        self.recorder.add_context(call, {"grad_enabled": False})
                    if api.is_random:
                        self.recorder.add_generator(call, describe_generator())
                if call is not None or self.recorder.records_modules:
                    span = self.gradients.begin(args, kwargs, wants_slots=call is not None and call.keeps_backward)
        except Exception as error:
            self.recorder.note_failure(api.stem, error)
        return call, span

    def end(self, api: Api, call: Call | None, span: Span | None, output: Any, note: str | None = None) -> None:
        """After a call that returned `output`."""
        try:
            with hidden():
                if call is not None:
                    self.recorder.finish(call, output, note or api.note)
                self.gradients.end(call, span, output)
        except ProgramError as late:
            self.end_failed(call, span, late.error)
            raise late.error from None
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def end_later(self, api: Api, call: Call | None, span: Span | None, output: Any) -> None:
        """After a call whose result the program gets as another object than this one."""
        try:
            if call is not None:
                self.recorder.finish(call, output, api.note)
                for tensor in output if isinstance(output, tuple) else (output,):
                    if isinstance(tensor, self.reader.tensor_type):
                        self.reader.note_orphan(tensor, call.forward_name)
            self.gradients.end_later(call, span, output)
        except ProgramError as late:
            self.end_failed(call, span, late.error)
            raise late.error from None
        except Exception as error:
            self.recorder.note_failure(api.stem, error)

    def end_failed(self, call: Call | None, span: Span | None, error: BaseException) -> None:
        try:
            self.gradients.end(call, span, None, has_failed=True)
            if call is not None:
                self.recorder.fail(call, error)
        except Exception as failure:
            self.recorder.note_failure("a call that raised", failure)


class CallPatch:
    """The functions that stand in for MindSpore's while a window is open. They are made once and put in place again and
    again: around compiled regions they are taken away, because the compiler would read them."""

    def __init__(self, runner: CallRunner, owners: Iterable[ApiOwner]) -> None:
        self._runner = runner
        self._places = [
            (owner.owner, name, owner.prefix, owner.path + name) for owner in owners for name in owner.names
        ]
        self._wrappers: dict[tuple[int, str], tuple[Any, Any]] = {}
        """Of each place, the original and what stands in for it."""
        self._early_names = EarlyNames({id(owner) for owner, _, _, _ in self._places})
        self._undo: Undo | None = None

    def install(self) -> None:
        if self._undo is None:
            self._undo = replace_all(self._find_replacements())

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _find_replacements(self) -> list[tuple[Any, str, Any]]:
        found = []
        by_original: dict[int, StandIns] = {}
        for owner, name, prefix, api_name in self._places:
            original = getattr(owner, name)
            known = self._wrappers.get((id(owner), name))
            if known is None or known[0] is not original:  # the first time, or somebody has put another there
                known = original, make_wrapper(self._runner, self._runner.names.make(prefix, api_name), original)
                self._wrappers[(id(owner), name)] = known
            if isinstance(owner, types.ModuleType):
                by_original.setdefault(id(original), StandIns(original, known[1])).add(name, known[1])
            found.append((owner, name, known[1]))
        return found + self._early_names.find(by_original)


class StandIns:
    """What stands in for one function: it may be found in several places, under several names (`dense`, `linear`)."""

    def __init__(self, original: Any, first: Any) -> None:
        self.original = original
        self._first = first
        self._by_name: dict[str, Any] = {}

    def add(self, name: str, wrapper: Any) -> None:
        self._by_name.setdefault(name, wrapper)

    def find(self, name: str) -> Any:
        """That of the place where the function has the same name; otherwise of the first."""
        return self._by_name.get(name, self._first)


class EarlyNames:
    """`from mindspore.ops import relu`: where the program, or a layer, has a function under a name of its own."""

    def __init__(self, owners: set[int]) -> None:
        self._owners = owners
        self._looked_at: dict[str, tuple[int, int, list[str]]] = {}
        """Of each module its address, how many names it had, and those that were of interest."""

    def find(self, known: Mapping[int, StandIns]) -> list[tuple[Any, str, Any]]:
        """`known`: by the address of an original, what stands in for it."""
        found = []
        for module_name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType) or id(module) in self._owners:
                continue
            names = vars(module)
            address, count, wanted = self._looked_at.get(module_name, (0, -1, []))
            if address != id(module) or count != len(names):
                is_of_interest = not is_library(module_name)
                wanted = [name for name, value in list(names.items()) if is_of_interest and id(value) in known]
                self._looked_at[module_name] = id(module), len(names), wanted
            for name in wanted:
                stand_ins = known.get(id(names.get(name)))
                if stand_ins is not None and names.get(name) is stand_ins.original:
                    found.append((module, name, stand_ins.find(name)))
        return found


def is_library(module_name: str) -> bool:
    """Modules whose names are left alone: those of MindSpore that do not make the user's calls, and our own."""
    if module_name.startswith("tensorprobe"):
        return True
    return module_name.partition(".")[0] == "mindspore" and not module_name.startswith(_LAYERS)


def make_wrapper(runner: CallRunner, api: Api, original: Callable[..., Any]) -> Any:
    """What stands in for a function: it records the call, unless it is made inside of another."""
    run, state = runner.run, hiding

    def call(*args: Any, **kwargs: Any) -> Any:
        if state.depth or not runner.is_active:
            return original(*args, **kwargs)
        state.depth += 1
        try:
            return run(api, original, args, kwargs)
        finally:
            state.depth -= 1

    return update_wrapper(call, original)
