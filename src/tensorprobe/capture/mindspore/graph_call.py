"""Records of the cells inside compiled graphs. A graph hands its values over from threads of its own: they are copied
and kept until it has run, and then told to the recorder in the order of the program."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from tensorprobe.capture.call import Call, GradientRecord, Slot
from tensorprobe.capture.mindspore.content import Array, array_of
from tensorprobe.capture.mindspore.executor import wait_for_results
from tensorprobe.capture.mindspore.graph import (
    BEGIN,
    END,
    INPUT,
    INPUT_GRADIENT,
    KEYWORD,
    KEYWORD_GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER_GRADIENT,
    GraphCapture,
    Spot,
)
from tensorprobe.capture.mindspore.graph_op import writes_from_python
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.module_call import ModuleNames, NamedModule
from tensorprobe.capture.recorder import Recorder

NO_SHAPE = "value inside a compiled graph whose shape is known only when it runs"
OTHER_DEVICE = "inside a compiled graph on a device that cannot call Python"
COMPILED = "inside a compiled function"
_GRADIENTS = (INPUT_GRADIENT, KEYWORD_GRADIENT, OUTPUT_GRADIENT)


class Event(NamedTuple):
    """Something that a graph has handed over."""

    spot: Spot
    call: int
    array: Array
    dtype: str


@dataclass(slots=True)
class GraphCall:
    """A call of a cell inside a graph, while it is told to the recorder."""

    call: Call
    named: NamedModule
    given: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    is_told: bool = False
    """Does the recorder know what it was given?"""


class GraphCalls:
    """The cells of the graphs that run in a window."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._capture: GraphCapture | None = None
        """Made for the first graph: most programs have none."""
        self._events: deque[Event] = deque()
        self._named: dict[str, NamedModule] = {}
        self._state: dict[str, dict[str, Tensor]] = {}
        self._open: list[GraphCall] = []
        self._calls: dict[int, GraphCall] = {}
        self._frame: FrameType | None = None

    def run(self, function: Callable[[], Any], names: ModuleNames) -> Any:
        """Run a compiled function, and record the cells that it calls."""
        recorder = self._recorder
        cells = self._find_cells(names)
        if not cells or not recorder.records_modules:
            recorder.coverage.add_unseen(COMPILED)
            return function()
        if not writes_from_python(ms.get_context("device_target")):
            recorder.coverage.add_unseen(OTHER_DEVICE)
            return function()
        self.tell()
        self._named.update({named.stem: named for named in cells})
        self._keep_state(names, cells)
        self._frame = sys._getframe(2)
        try:
            return self._run(function, cells, list(names.parameters().values()) if is_graph_mode() else [])
        finally:
            self._frame = None
            self._state.clear()

    def _run(self, function: Callable[[], Any], cells: list[NamedModule], parameters: list[Any]) -> Any:
        capture = self._capture = self._capture or GraphCapture(self._keep)
        undo = capture.install([(named.stem, named.module) for named in cells], parameters)
        failure: Exception | None = None
        try:
            result = function()
        except Exception as error:
            if self._events:  # it was compiled and has run
                raise
            failure = error
        finally:
            undo()
        if failure is not None:
            result = function()  # an error of the user's own comes again
            self._recorder.note_failure(f"{capture.last_stem} inside a compiled graph", failure)
            self._recorder.coverage.add_unseen(COMPILED)
            return result
        wait_for_results()
        self.tell()
        for _ in capture.unseen:
            self._recorder.coverage.add_unseen(NO_SHAPE)
        return result

    def tell(self) -> None:
        """Tell the recorder what graphs have handed over so far."""
        gradients: dict[int, list[Event]] = {}
        has_parameters = False
        while self._events:
            event = self._events.popleft()
            try:
                if event.spot.role in _GRADIENTS:
                    gradients.setdefault(event.call, []).append(event)
                    continue
                with hidden():
                    if event.spot.role == PARAMETER_GRADIENT:
                        has_parameters = True
                        self._recorder.add_parameter_gradient(event.spot.stem, event.spot.path, _make_tensor(event))
                    else:
                        self._tell_forward(event)
            except Exception as error:
                self._recorder.note_failure(event.spot.stem, error)
        for number, events in gradients.items():
            try:
                with hidden():
                    self._tell_backward(self._calls.get(number), events)
            except Exception as error:
                self._recorder.note_failure(events[0].spot.stem, error)
        if has_parameters:
            self._recorder.end_backward_pass()

    def finish(self) -> None:
        """The window or the step ends: backward passes that run by now have been asked for."""
        if self._capture is not None:
            wait_for_results()
            self.tell()

    def end_step(self) -> None:
        self.finish()
        self._calls.clear()
        self._open.clear()

    # -- forward -------------------------------------------------------------------------------------------------------

    def _tell_forward(self, event: Event) -> None:
        role = event.spot.role
        if role == BEGIN:
            self._begin(event)
            return
        known = self._calls.get(event.call)
        if known is None:
            return
        if role == INPUT:
            known.given[event.spot.path] = _make_tensor(event)
        elif role == KEYWORD:
            known.keywords[event.spot.path] = _make_tensor(event)
        elif role == OUTPUT:
            known.result[event.spot.path] = _make_tensor(event)
        elif role == END:
            self._end(known)

    def _begin(self, event: Event) -> None:
        if self._open:
            self._tell_inputs(self._open[-1])
        named = self._named[event.spot.stem]
        call = self._recorder.begin_module(named.stem, named.path, self._frame)
        known = self._calls[event.call] = GraphCall(call, named)
        self._open.append(known)

    def _end(self, known: GraphCall) -> None:
        self._tell_inputs(known)
        while self._open and self._open.pop() is not known:
            pass
        self._recorder.end_module(known.call)
        result = make_tree(known.result)
        self._recorder.finish(known.call, tuple(result) if isinstance(result, list) else result)
        known.result = {}

    def _tell_inputs(self, known: GraphCall) -> None:
        if known.is_told:
            return
        known.is_told = True
        given, keywords = make_tree(known.given), make_tree(known.keywords)
        self._recorder.add_inputs(known.call, tuple(given or ()), keywords or {})
        self._recorder.add_state(known.call, "parameters", self._state.get(known.named.stem, {}))
        known.given, known.keywords = {}, {}

    # -- backward ------------------------------------------------------------------------------------------------------

    def _tell_backward(self, known: GraphCall | None, events: list[Event]) -> None:
        if known is None or not known.call.keeps_backward:
            return
        record = GradientRecord(self._recorder, known.call)
        received: list[tuple[Slot, Event]] = []

        def make_slots(role: str, name: str) -> Any:
            paths: dict[str, Slot] = {}
            for event in events:
                if event.spot.role == role and event.spot.path not in paths:
                    slot = paths[event.spot.path] = Slot(f"{name}.{event.spot.path}")
                    record.expect(slot)
                    received.append((slot, event))
            return make_tree(paths)

        record.inputs = make_slots(OUTPUT_GRADIENT, "input")
        record.outputs = make_slots(INPUT_GRADIENT, "output")
        record.outputs_by_keyword = make_slots(KEYWORD_GRADIENT, "kwargs")
        for slot, event in received:
            record.receive(slot, _make_tensor(event))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _keep(self, spot: Spot, call: int, array: Array, dtype: str) -> None:
        self._events.append(Event(spot, call, array.copy(), dtype))

    def _find_cells(self, names: ModuleNames) -> list[NamedModule]:
        """All that are known, but for those whose call is being recorded from outside."""
        around = set()
        call = self._recorder.current_module()
        while call is not None:
            around.add(call.stem)
            call = call.parent
        return [named for named in names.all() if named.stem not in around]

    def _keep_state(self, names: ModuleNames, cells: list[NamedModule]) -> None:
        """The parameters as they are before the graph runs: it may update them."""
        with hidden():
            for named in cells:
                parameters = names.dialect.parameters(named.module)
                self._state[named.stem] = {
                    name: _tensor_of(array_of(parameter).copy()) for name, parameter in parameters.items()
                }


def is_graph_mode() -> bool:
    return bool(ms.get_context("mode") == ms.GRAPH_MODE)


def make_tree(entries: dict[str, Any]) -> Any:
    """The nesting that dotted paths come from: positions are lists, with None where nothing came, names are dicts."""
    if not entries:
        return None
    if "" in entries:
        return entries[""]
    groups: dict[str, dict[str, Any]] = {}
    for path, value in entries.items():
        first, _, rest = path.partition(".")
        groups.setdefault(first, {})[rest] = value
    if not all(key.isdecimal() for key in groups):
        return {key: make_tree(group) for key, group in groups.items()}
    items: list[Any] = [None] * (max(int(key) for key in groups) + 1)
    for key, group in groups.items():
        items[int(key)] = make_tree(group)
    return items


def _make_tensor(event: Event) -> Tensor:
    return _tensor_of(event.array)


def _tensor_of(array: Array) -> Tensor:
    if array.dtype.kind == "V":
        array = array.view(_BFLOAT16)
    return Tensor(np.ascontiguousarray(array).reshape(array.shape))


_BFLOAT16 = Tensor([0], ms.bfloat16).asnumpy().dtype
