"""Sees calls of the Primitive objects that a model holds, by one patch for each of their classes. Nothing is put on the
objects.

`Primitive.relu.ReLU.0`: the name that the primitive has in its cell, and its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace as changed
from typing import Any

from mindspore import Tensor

from tensorprobe.capture.describe import describe_plain
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.api_name import PRIMITIVE, Api
from tensorprobe.capture.mindspore.call_patch import CallRunner
from tensorprobe.capture.mindspore.hiding import hiding
from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.patch import replace
from tensorprobe.model.tree import map_tree, tuple_paths


class PrimitivePatch:
    """Functions in the place of `__call__` of the classes of a model's primitives."""

    def __init__(self, runner: CallRunner, primitives: Sequence[tuple[str, Any]]) -> None:
        self._runner = runner
        self._undo: Undo | None = None
        self._primitives: list[Any] = []
        """Held, so that their addresses stay their own."""
        self._apis: dict[int, Api] = {}
        self.follow(primitives)

    def follow(self, primitives: Sequence[tuple[str, Any]]) -> None:
        """See the calls of these, and of no others."""
        is_installed = self._undo is not None
        self.remove()
        self._primitives = [primitive for _, primitive in primitives]
        self._apis = {id(primitive): _api_of(self._runner, name, primitive) for name, primitive in primitives}
        if is_installed:
            self.install()

    def install(self) -> None:
        if self._undo is not None:
            return
        with ExitStack() as undos:
            for kind in {type(primitive) for primitive in self._primitives}:
                undos.callback(replace(kind, "__call__", self._make_call(kind.__call__)))
            self._undo = undos.pop_all().close

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        runner, apis, state = self._runner, self._apis, hiding

        def call_primitive(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            api = apis.get(id(primitive)) if runner.is_active and not state.depth else None
            if api is None:
                return original(primitive, *args, **kwargs)
            state.depth += 1
            try:
                return runner.run(api, original.__get__(primitive), args, kwargs)
            finally:
                state.depth -= 1

        return call_primitive


def _api_of(runner: CallRunner, name: str, primitive: Any) -> Api:
    api = runner.names.make(PRIMITIVE, f"{name}.{type(primitive).__name__}")
    return with_settings(api, primitive, runner.reader)


def with_settings(api: Api, primitive: Any, reader: MindSporeReader) -> Api:
    """An API with what its primitive was made with, by name: its epsilon, its axis. Tensors are not looked into."""
    made_with = getattr(primitive, "init_attrs", None)
    if not isinstance(made_with, Mapping):
        return api

    def leaf(value: Any, _: str) -> Any:
        if value is None or isinstance(value, Tensor):
            return value if value is None else {"type": type(value).__name__}
        return reader.describe_object(value) or describe_plain(value)

    settings = map_tree(dict(made_with), "settings", leaf, (Tensor,))
    return changed(api, settings=settings, tuples=tuple(tuple_paths(dict(made_with), "settings")))
