"""Sees module calls: one patch of `Module.__call__`, for the time of the window. Nothing is put on the user's modules.

Modules are known by address while a window is open, and by the path they have in the model given to `start`; wrappers
that only carry a model (DDP, FSDP, torch.compile) have no part in the names.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.call import Call
from tensorprobe.capture.collector import collector
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.recursion import room
from tensorprobe.capture.root import Roots
from tensorprobe.capture.torch.call_mode import CallMode, CallRunner, end_raised
from tensorprobe.capture.torch.generator import describe_generator
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.hook_plan import Span
from tensorprobe.capture.torch.kept_call import find_present, mark_direct, only_hands_on
from tensorprobe.capture.torch.mode_stack import is_on_stack
from tensorprobe.model.name import module_stem

MODULE_PREFIX = "Module"

# Wrappers, by class name so that nothing need be imported to know them, and the attribute that holds what they wrap.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
_COMPILED_WRAPPER = "OptimizedModule"
_FAST_PATH = (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
_RANDOM = (torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)

logger = logging.getLogger("tensorprobe")

NoteFailure = Callable[[str, BaseException], None]


@dataclass(slots=True)
class NamedModule:
    """A module of the user's model. Held while the window is open, so that its address stays its own."""

    module: torch.nn.Module
    stem: str
    path: str | None
    """None for a layer that is no part of the model."""
    layer: str | None = None
    """Its class, if that is a layer of torch's own library."""
    is_reduced: bool = False
    """Its gradients are reduced over ranks, and are what they will be only when the backward pass is over."""

    @property
    def owner(self) -> torch.nn.Module:
        """The module that has the parameters: what a compiled wrapper wraps, otherwise the module itself."""
        owner = self.module
        while (inner := unwrap(owner)) is not None:
            owner = inner
        return owner


class ModuleNames:
    """Which modules are followed, and what they are called."""

    def __init__(
        self,
        models: Sequence[tuple[str, torch.nn.Module]],
        note_failure: NoteFailure,
        *,
        adopts_layers: bool = False,
        roots: Roots | None = None,
    ) -> None:
        self._note_failure = note_failure
        self._adopts_layers = adopts_layers
        self._roots = roots
        self.after_adoption: Callable[[], None] = nothing
        """Called when a model was added to those given to `start`."""
        self._known: dict[int, NamedModule] = {}
        self._adopts_roots = not models
        for index, model in models:
            self._add(model, index)

    def find(self, module: torch.nn.Module, is_outermost: bool) -> NamedModule | None:
        """What is known of a module; without a model given to `start`, the outermost module that is called serves as
        one."""
        named = self._known.get(id(module))
        if named is None and is_outermost and (name := self._adopt(module)) is not None:
            self._add(module, name)
            self.after_adoption()
            named = self._known.get(id(module))
        if named is None and self._adopts_layers:  # a loss function that the program keeps beside its model
            layer = layer_of(module)
            named = NamedModule(module, f"{MODULE_PREFIX}.{layer}", None, layer) if layer is not None else None
        return named

    def _adopt(self, module: torch.nn.Module) -> str | None:
        """The name of a model that nobody has given to `start`; None if it is to be none, or is known."""
        return self._roots.adopt(module) if self._roots is not None else "" if self._adopts_roots else None

    def parameters(self) -> dict[int, tuple[str, str, Any]]:
        """Each parameter by its address: the stem of its module, its name there, and itself. Without those whose
        gradients are reduced over ranks."""
        found: dict[int, tuple[str, str, Any]] = {}
        for named in list(self._known.values()):
            if named.is_reduced:
                continue
            for name, parameter in present(named.owner._parameters).items():
                found.setdefault(id(parameter), (named.stem, name, parameter))
        return found

    def parameter_names(self) -> dict[int, str]:
        """Each parameter by its address: its dotted name in the model."""
        found: dict[int, str] = {}
        for named in list(self._known.values()):
            for name, parameter in present(named.owner._parameters).items():
                found.setdefault(id(parameter), f"{named.path}.{name}" if named.path else name)
        return found

    def reduced(self) -> list[NamedModule]:
        """The modules whose gradients are reduced over ranks."""
        return [named for named in list(self._known.values()) if named.is_reduced]

    def _add(self, model: torch.nn.Module, index: str) -> None:
        for path, module, class_name, is_reduced in walk_modules(model, self._note_failure):
            full_path = f"{index}.{path}".strip(".") if index else path
            stem = module_stem(MODULE_PREFIX, full_path, class_name)
            self._known.setdefault(id(module), NamedModule(module, stem, full_path, layer_of(module), is_reduced))


def walk_modules(model: torch.nn.Module, note_failure: NoteFailure) -> Iterator[tuple[str, torch.nn.Module, str, bool]]:
    """All modules with the path and class that they have without wrappers, and whether their gradients are reduced over
    ranks. A compiled module stands for what it compiles. No method of a module is called: it may be the program's, and
    raise; and a tree may be deeper than Python's stack."""
    seen: set[int] = set()
    pending = [("", model, False)]
    while pending:
        path, module, is_reduced = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        try:
            is_reduced = is_reduced or reduces_gradients(module)
            inner = unwrap(module)
            if inner is not None and type(module).__name__ != _COMPILED_WRAPPER:
                pending.append((path, inner, is_reduced))
                continue
            named = module
            while inner is not None:
                seen.add(id(inner))
                named, is_reduced, inner = inner, is_reduced or reduces_gradients(inner), unwrap(inner)
            children = [(f"{path}.{name}".strip("."), child) for name, child in named._modules.items()]
        except Exception as error:
            note_failure(f"{path or 'the model'}, with the modules in it,", error)
            continue
        yield path, module, class_name_of(named), is_reduced
        pending += [(inside, child, is_reduced) for inside, child in reversed(children) if child is not None]


def reduces_gradients(module: torch.nn.Module) -> bool:
    """Does something reduce the gradients of this module, and those inside it, over ranks?"""
    return type(module).__name__ in _REDUCING_WRAPPERS or any(
        kind.__name__ in _REDUCING_CLASSES and kind.__module__.startswith("torch.distributed.")
        for kind in type(module).__mro__
    )


def layer_of(module: torch.nn.Module) -> str | None:
    """The class of a layer of torch's own library that is made of no others; None for a container, and for everything
    that is the user's."""
    kind = type(module)
    is_of_library = kind.__module__.startswith(_LIBRARY) and kind is not torch.nn.Module
    return kind.__name__ if is_of_library and not module._modules and not isinstance(module, _CONTAINERS) else None


def unwrap(module: torch.nn.Module) -> torch.nn.Module | None:
    """What a wrapper wraps; None for a module that is none."""
    attribute = _WRAPPERS.get(type(module).__name__)
    inner = getattr(module, attribute, None) if attribute is not None else None
    return inner if isinstance(inner, torch.nn.Module) else None


def class_name_of(module: torch.nn.Module) -> str:
    """The user's class; FSDP2, replicate and parametrizations put a made-up class before it."""
    kinds = type(module).__mro__
    return next((kind.__name__ for kind in kinds if not kind.__module__.startswith(_CLASS_MAKERS)), kinds[0].__name__)


_CLASS_MAKERS = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.nn.utils.parametrize")
_LIBRARY = "torch.nn.modules."
_CONTAINERS = (
    torch.nn.Sequential,
    torch.nn.ModuleList,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.ParameterDict,
)
_REDUCING_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
_REDUCING_CLASSES = ("FSDPModule", "DDP", "ReplicateModule")


class ModuleRunner:
    """Runs a module between the notes that the recorder takes."""

    def __init__(self, calls: CallRunner, names: ModuleNames, mode: CallMode | None) -> None:
        self.recorder = calls.recorder
        self.gradients = calls.gradients
        self.names = names
        self.calls = calls
        self._mode = mode
        self.is_active = True
        """False once the window is closed: a patch that could not be taken back then passes calls through."""
        self._has_warned = False
        self._thread = threading.get_ident()

    def before(
        self, named: NamedModule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Call | None, Span | None]:
        call: Call | None = None
        span: Span | None = None
        recorder, young = self.recorder, collector.begin()
        try:
            self._warn_of_fast_path(named)
            call = recorder.begin_module(named.stem, named.path, sys._getframe(2), named.layer)
            if call.is_recorded:
                with hidden():
                    recorder.add_inputs(call, args, kwargs)
                    recorder.add_state(call, "parameters", present(named.owner._parameters))
                    recorder.add_state(call, "buffers", present(named.owner._buffers))
                    if isinstance(named.module, _RANDOM) and named.module.training:
                        recorder.add_generator(call, describe_generator(args, kwargs))
                    span = self.gradients.begin(args, kwargs, wants_slots=call.keeps_backward)
        except Exception as error:
            recorder.note_failure(named.stem, error)
        collector.end(young)
        return call, span

    def cannot_look(self) -> bool:
        """Is this a call that is only counted?"""
        reason = self.calls.why_unseen()
        if reason is not None:
            self.recorder.coverage.add_unseen(reason)
        return reason is not None

    def needs_mode(self) -> bool:
        """Is this the outermost module call of a thread that the mode is not in? Modes belong to threads."""
        return (
            self._mode is not None
            and threading.get_ident() != self._thread
            and self.recorder.current_module() is None
            and not is_on_stack(self._mode)
        )

    def call_with_mode(self, call_module: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module in another thread than that of `start`, with its API calls in sight."""
        assert self._mode is not None
        with self._mode:
            return call_module(module, *args, **kwargs)

    def _warn_of_fast_path(self, named: NamedModule) -> None:
        """The one known exception to "capture changes no bit": these leave their fast path when any mode is active."""
        if not self.recorder.records_apis or named.module.training or not isinstance(named.module, _FAST_PATH):
            return
        if not torch.is_grad_enabled() and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s (%s) leaves its fast path while API calls are recorded; its outputs may differ in the last bits. "
                "Level L0 does not have this effect",
                named.path or "the model",
                type(named.module).__name__,
            )

    def after(self, named: NamedModule, call: Call | None, span: Span | None, output: Any) -> None:
        if call is None:
            return
        young = collector.begin()
        try:
            self.recorder.end_module(call)
            if call.is_recorded:
                with hidden():
                    self.recorder.finish(call, output)
                    self.gradients.end(call, span, output)
        except Exception as error:
            self.recorder.note_failure(named.stem, error)
        collector.end(young)

    def after_failure(self, named: NamedModule, call: Call | None, span: Span | None, failure: BaseException) -> None:
        if call is None:
            return
        try:
            self.recorder.end_module(call)
            self.gradients.end(call, span, None, has_failed=True)
            if call.is_recorded:
                end_raised(self.recorder, call, failure)
        except Exception as error:
            self.recorder.note_failure(named.stem, error)


class ModulePatch:
    """A function in the place of `Module.__call__`. It is taken away and put back around compiled regions."""

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
    """Put a function in the place of `Module.__call__`; the undo puts the original back."""
    original = torch.nn.Module.__call__
    find, recorder = runner.names.find, runner.recorder
    is_torchs_own = only_hands_on(original)

    def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not is_torchs_own:
            run = partial(original, module)
        else:  # what torch's own `__call__` does, in its place: nested modules take no more of the stack than before
            compiled = module._compiled_call_impl
            run = module._call_impl if compiled is None else compiled
        if not runner.is_active and (present := find_present(call_module)) is not None:
            return present(module, *args, **kwargs)
        if runner.is_active and room.is_short():
            return runner.calls.call_aside(run, args, kwargs)
        is_outermost = runner.is_active and recorder.current_module() is None
        if is_outermost and recorder.roots is not None and recorder.roots.before_call(module):
            return torch.nn.Module.__call__(module, *args, **kwargs)  # into another window, or none
        named = find(module, is_outermost) if runner.is_active else None
        if named is None or runner.cannot_look():
            return run(*args, **kwargs)
        if runner.needs_mode():
            return runner.call_with_mode(call_module, module, args, kwargs)
        call, span = runner.before(named, args, kwargs)
        try:
            output = run(*args, **kwargs)
        except BaseException as error:
            runner.after_failure(named, call, span, error)
            raise
        runner.after(named, call, span, output)
        return output

    recorder.stacks.set_boundary(call_module.__code__)
    (room.stand_ins.add if is_torchs_own else room.stand_ins.discard)(call_module.__code__)
    mark_direct(call_module, original)
    torch.nn.Module.__call__ = call_module

    def undo() -> None:
        if torch.nn.Module.__call__ is call_module:
            torch.nn.Module.__call__ = original

    return undo


def present(tensors: dict[str, Any]) -> dict[str, Any]:
    """Without the places that hold nothing (`bias=False`)."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
