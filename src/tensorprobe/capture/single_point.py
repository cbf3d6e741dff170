"""`debugger.save(variable, name)`: one variable at one point, forward and, when it comes, its gradient."""

from __future__ import annotations

import logging
from typing import Any

from tensorprobe.capture.describe import Describer
from tensorprobe.capture.framework import Framework, Undo
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.storing import Storing
from tensorprobe.model.name import GRADIENT_SUFFIX, DebugName
from tensorprobe.model.tree import map_tree

logger = logging.getLogger("tensorprobe")


class SinglePoints:
    """The saved variables of one step. Indexes count per name, and the gradient has the index of its forward."""

    def __init__(self, recorder: Recorder, describer: Describer, framework: Framework) -> None:
        self._recorder = recorder
        self._describer = describer
        self._framework = framework
        self._counts: dict[str, int] = {}
        self._pending: dict[PointGradient, Undo] = {}

    def begin_step(self) -> None:
        self._counts.clear()

    def end_step(self) -> None:
        """Gradients that have not come by now will not be waited for."""
        for pending in list(self._pending):
            pending.finish()
        for undo in self._pending.values():
            undo()
        self._pending.clear()

    def save(self, variable: Any, name: str, *, has_backward: bool, stores: Storing) -> None:
        """Describe `variable` now, and watch for its gradient."""
        if name.endswith(GRADIENT_SUFFIX) and name.removesuffix(GRADIENT_SUFFIX) in self._counts:
            logger.warning("save(…, %r) has the name that the gradient of another saved variable has: rename it", name)
        index = self._counts.get(name, 0)
        self._counts[name] = index + 1
        key = str(DebugName(name, index))
        try:
            with self._framework.hidden():
                self._add(key, self._describer.describe(variable, key, stores=stores))
                if has_backward:
                    self._watch(variable, str(DebugName(name + GRADIENT_SUFFIX, index)), stores)
        except Exception as error:
            self._recorder.note_failure(f"save of {name!r}", error)

    def _watch(self, variable: Any, key: str, stores: Storing) -> None:
        tensors: list[Any] = []
        paths: list[str] = []

        def leaf(value: Any, path: str) -> int | None:
            if not isinstance(value, self._recorder.reader.tensor_type):
                return None
            tensors.append(value)
            paths.append(path)
            return len(tensors) - 1

        shape = map_tree(variable, key, leaf, self._recorder.reader.atoms)
        pending = PointGradient(self, key, shape, paths, stores)
        undo = self._framework.watch_gradient(self._recorder, tensors, pending.receive, pending.finish)
        if undo is not None:
            self._pending[pending] = undo

    def describe(self, gradient: Any, path: str, stores: Storing) -> Any:
        return self._describer.describe_tensor(gradient, path, None, stores)

    def end(self, pending: PointGradient, key: str, tree: Any) -> None:
        """All gradients of one save have come."""
        undo = self._pending.pop(pending, None)
        if undo is not None:
            undo()
            self._add(key, tree)

    def _add(self, key: str, tree: Any) -> None:
        sink = self._recorder.sink
        if sink is not None:
            self._recorder.coverage.recorded += 1
            sink.add_debug(key, tree)


class PointGradient:
    """The gradients of one saved variable, nested as the variable is."""

    def __init__(self, owner: SinglePoints, key: str, shape: Any, paths: list[str], stores: Storing) -> None:
        self._owner = owner
        self._key = key
        self._shape = shape
        self._paths = paths
        self._stores = stores
        self._leaves: dict[int, Any] = {}

    def receive(self, index: int, gradient: Any) -> None:
        """The gradient of tensor number `index` is known."""
        self._leaves[index] = self._owner.describe(gradient, self._paths[index], self._stores)

    def finish(self) -> None:
        """Write what has come; where nothing has come there is nothing to write."""
        tree = map_tree(self._shape, "", lambda index, _: None if index is None else self._leaves.get(index))
        if self._leaves:
            self._owner.end(self, self._key, tree)
