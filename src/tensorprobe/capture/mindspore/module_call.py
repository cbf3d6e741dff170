"""Sees module calls: one patch of `Cell.__call__`, for the time of the window. Nothing is put on the user's cells.

Cells are known by address while a window is open, and by the path they have in the model given to `start`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensorprobe.capture.call import Call
from tensorprobe.capture.failure import ProgramError
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.dialect import Dialect, NoteFailure
from tensorprobe.capture.mindspore.generator import describe_generator
from tensorprobe.capture.mindspore.hiding import hidden, hiding
from tensorprobe.capture.mindspore.hook_plan import Span
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.recursion import note_full_stack, room
from tensorprobe.capture.root import Roots
from tensorprobe.model.name import module_stem

_WRAPPERS = ("amp", "distributed")
"""Parts of MindSpore that put cells around those of a model, and hand their calls on: the model makes them."""

_REDUCER = "Identity"
"""What TrainOneStepCell hands all gradients through where there is one rank: none of the network's calls."""


@dataclass(slots=True)
class NamedModule:
    """A module of the user's model. Held while the window is open, so that its address stays its own."""

    module: Any
    stem: str
    path: str | None
    """None for a layer that is no part of the model."""
    layer: str | None = None
    """Its class, if that is a layer of the framework's own library."""


class ModuleNames:
    """Which modules are followed, and what they are called."""

    def __init__(
        self,
        models: Sequence[tuple[str, Any]],
        note_failure: NoteFailure,
        dialect: Dialect,
        *,
        adopts_layers: bool = False,
        roots: Roots | None = None,
    ) -> None:
        self._note_failure = note_failure
        self.dialect = dialect
        self._adopts_layers = adopts_layers
        self._roots = roots
        self.after_adoption: Callable[[], None] = nothing
        """Called when a model was added to those given to `start`."""
        self._known: dict[int, NamedModule] = {}
        self._adopts_roots = not models
        for index, model in models:
            self._add(model, index)

    def find(self, module: Any, is_outermost: bool) -> NamedModule | None:
        """What is known of a module; without a model given to `start`, the outermost module that is called serves as
        one."""
        named = self._known.get(id(module))
        if named is None and is_outermost and (name := self._adopt(module)) is not None:
            self._add(module, name)
            self.after_adoption()
            named = self._known.get(id(module))
        if named is None and self._adopts_layers:  # a loss function that the program keeps beside its model
            layer = self.dialect.layer_of(module)
            stem = f"{self.dialect.module_prefix}.{layer}"
            is_call = layer is not None and layer != _REDUCER
            named = NamedModule(module, stem, None, layer) if is_call else None
        return named

    def _adopt(self, module: Any) -> str | None:
        """The name of a model that nobody has given to `start`; None if it is to be none, or is known."""
        return self._roots.adopt(module) if self._roots is not None else "" if self._adopts_roots else None

    def all(self) -> list[NamedModule]:
        return list(self._known.values())

    def parameters(self) -> dict[int, tuple[str, str, Any]]:
        """Each parameter by its address: the stem of its module, its name there, and itself."""
        found: dict[int, tuple[str, str, Any]] = {}
        for named in self._known.values():
            for name, parameter in self.dialect.parameters(named.module).items():
                found.setdefault(id(parameter), (named.stem, name, parameter))
        return found

    def parameter_names(self) -> dict[int, str]:
        """Each parameter by its address: its dotted name in the model."""
        found: dict[int, str] = {}
        for named in self._known.values():
            for name, parameter in self.dialect.parameters(named.module).items():
                found.setdefault(id(parameter), f"{named.path}.{name}" if named.path else name)
        return found

    def primitives(self) -> list[tuple[str, Any]]:
        """The Primitive objects that the modules hold, each with the name it has there."""
        found: dict[int, tuple[str, Any]] = {}
        for named in self._known.values():
            for name, primitive in self.dialect.primitives(named.module).items():
                found.setdefault(id(primitive), (name, primitive))
        return list(found.values())

    def _add(self, model: Any, index: str) -> None:
        for path, module in self.dialect.walk(model, self._note_failure):
            full_path = f"{index}.{path}".strip(".") if index else path
            stem = module_stem(self.dialect.module_prefix, full_path, type(module).__name__)
            self._known.setdefault(id(module), NamedModule(module, stem, full_path, self.dialect.layer_of(module)))


class ModuleRunner:
    """Runs a module between the notes that the recorder takes."""

    def __init__(self, calls: CallRunner, names: ModuleNames) -> None:
        self.recorder = calls.recorder
        self.gradients = calls.gradients
        self.names = names
        self._calls = calls
        self.is_active = True
        """False once the window is closed: a patch that could not be taken back then passes calls through."""

    def before(
        self, named: NamedModule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Call | None, Span | None]:
        call: Call | None = None
        span: Span | None = None
        recorder, dialect = self.recorder, self.names.dialect
        try:
            call = recorder.begin_module(named.stem, named.path, sys._getframe(2), named.layer)
            if call.stack is not None and call.stack.caller in _WRAPPERS:
                call.stack = replace(call.stack, caller=None)
            if call.is_recorded:
                with hidden():
                    recorder.add_inputs(call, args, kwargs)
                    recorder.add_state(call, "parameters", self._state_of(named, dialect.parameters))
                    recorder.add_state(call, "buffers", self._state_of(named, dialect.buffers))
                    if named.module.training and isinstance(named.module, dialect.random_types):
                        recorder.add_generator(call, describe_generator())
                    span = self.gradients.begin(
                        args,
                        kwargs,
                        wants_slots=call.keeps_backward,
                        begins_graph=getattr(named.module, "requires_grad", False) is True,
                    )
        except Exception as error:
            recorder.note_failure(named.stem, error)
        return call, span

    def _state_of(self, named: NamedModule, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """What a module holds itself; where a layer is one call, what its parts hold too (`BatchNorm3d`)."""
        found = read(named.module)
        if self.recorder.records_layers:
            for path, part in self.names.dialect.walk(named.module, self.recorder.note_failure):
                for name, tensor in read(part).items() if path else ():
                    found[f"{path}.{name}" if name in found else name] = tensor
        return found

    def call_aside(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The stack is nearly used up: the module runs as without a capture, and so does all that is in it."""
        note_full_stack(self.recorder)
        with hidden(), room.widened():
            return run(*args, **kwargs)

    def cannot_look(self) -> bool:
        """Is this a call that is only counted?"""
        reason = self._calls.why_unseen()
        if reason is not None:
            self.recorder.coverage.add_unseen(reason)
        return reason is not None

    def after(self, named: NamedModule, call: Call | None, span: Span | None, output: Any) -> None:
        if call is None:
            return
        try:
            self.recorder.end_module(call)
            if call.is_recorded:
                with hidden():
                    self.recorder.finish(call, output)
                    self.gradients.end(call, span, output)
        except ProgramError as late:
            self.after_failure(named, call, span, late.error)
            raise late.error from None
        except Exception as error:
            self.recorder.note_failure(named.stem, error)

    def after_failure(self, named: NamedModule, call: Call | None, span: Span | None, failure: BaseException) -> None:
        if call is None:
            return
        try:
            self.recorder.end_module(call)
            self.gradients.end(call, span, None, has_failed=True)
            if call.is_recorded:
                self.recorder.fail(call, failure)
        except Exception as error:
            self.recorder.note_failure(named.stem, error)


class ModulePatch:
    """A function in the place of `Cell.__call__`. It is taken away and put back around compiled regions."""

    def __init__(self, runner: ModuleRunner) -> None:
        self._runner = runner
        self._undo: Undo | None = None

    def install(self) -> None:
        if self._undo is None:
            self._undo = patch_module_call(self._runner)

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def patch_module_call(runner: ModuleRunner) -> Undo:
    """Put a function in the place of `Cell.__call__`; the undo puts the original back."""
    kind, name = runner.names.dialect.module_type, runner.names.dialect.call_name
    original = getattr(kind, name)
    find, recorder = runner.names.find, runner.recorder

    def call_module(module: Any, *args: Any, **kwargs: Any) -> Any:
        if runner.is_active and room.is_short():
            return runner.call_aside(partial(original, module), args, kwargs)
        is_looked_at = runner.is_active and not hiding.depth
        is_outermost = is_looked_at and recorder.current_module() is None
        if is_outermost and recorder.roots is not None and recorder.roots.before_call(module):
            return getattr(kind, name)(module, *args, **kwargs)  # into another window, or none
        named = find(module, is_outermost) if is_looked_at else None
        if named is None or runner.cannot_look():
            return original(module, *args, **kwargs)
        call, span = runner.before(named, args, kwargs)
        try:
            output = original(module, *args, **kwargs)
        except BaseException as error:
            runner.after_failure(named, call, span, error)
            raise
        runner.after(named, call, span, output)
        return output

    recorder.stacks.set_boundary(call_module.__code__)
    setattr(kind, name, call_module)

    def undo() -> None:
        if getattr(kind, name) is call_module:
            setattr(kind, name, original)

    return undo
