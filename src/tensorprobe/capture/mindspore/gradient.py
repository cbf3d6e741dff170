"""The gradients of one call: hooks on the nodes that the call made in the graph. Its arguments are not touched.

A call knows which nodes were there before it. Walking back from its outputs over the nodes that came later finds the
edges that leave it; a hook on a node with an edge to one of the call's inputs receives exactly this call's share of
that input's gradient, and the shares add up. Module calls compose the edges of the calls inside them, so that each node
is visited once. Hooks hold slots and numbers, never tensors or nodes: a closure over its own graph would keep it alive.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mindspore import Tensor

from tensorprobe.capture.call import Call, GradientRecord, Slot, iter_slots
from tensorprobe.capture.mindspore.engine import NO_PASS, enter_pass, leave_pass
from tensorprobe.capture.mindspore.executor import executor, is_recording_gradients
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.hook_plan import Consumers, HookPlan, Span, Wanted
from tensorprobe.capture.mindspore.hook_removal import HookRemoval
from tensorprobe.capture.mindspore.node import Kind, compiled_edges, identity_of, spread_gradients
from tensorprobe.capture.mindspore.tensor_hook import hook_tensor
from tensorprobe.capture.recorder import Recorder
from tensorprobe.model.tree import map_tree

NO_BACKWARD = "backward of an operation that was seen by its kernel only"
NOT_TOLD_APART = "gradients of a compiled function: some were left out, and which ones is not known"
_ATOMS = (Tensor,)
_MAX_LATE = 16


class LateCall(NamedTuple):
    """A call that has ended, and its results as they were before the program got them."""

    call: Call
    span: Span
    outputs: list[Any]


class ThreadSpans(threading.local):
    """The spans that are open in a thread, and the last node that was seen in it."""

    def __init__(self) -> None:
        self.open: list[Span] = []
        self.latest = -1


class GradientTracer:
    """Follows the graph that calls make, and installs the hooks that bring their gradients back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._spans = ThreadSpans()
        self._composes = recorder.records_modules
        self.removal = HookRemoval()
        self._parameters: list[tuple[str, str, Any]] = []
        self._parameter_hooks: list[Any] = []
        self._parameter_watch = 0
        """Which hooks on parameters count: once an operation has failed, MindSpore cannot remove the earlier ones."""
        self._tasks: set[int] = set()
        """The backward passes that are running: more than one, where one runs inside another."""
        self._has_ended_pass = False
        self._is_window_open = False
        self._late: dict[int, LateCall] = {}
        """Calls that have ended before their results hung in the graph, by the memory of their results."""

    def begin(self, args: Any, kwargs: Any, *, wants_slots: bool, begins_graph: bool = False) -> Span | None:
        """Before a call: note where its inputs hang in the graph. An in-place call changes that. `begins_graph`: the
        call is a module that is differentiated itself."""
        if not (wants_slots or self._composes):
            return None  # nobody waits for a gradient
        if not executor.requires_grad() and not begins_graph:
            return None
        span = Span(self._spans.latest)
        if wants_slots and executor.requires_grad():
            self._note_arguments(span, args, kwargs)
        elif wants_slots:
            span.arguments = args, kwargs
        span.start = self._spans.latest
        if self._composes:
            self._spans.open.append(span)
        return span

    def end(self, call: Call | None, span: Span | None, output: Any, *, has_failed: bool = False) -> None:
        """After a call: hook its outputs and the edges that leave it."""
        if span is None:
            return
        self._close(span)
        if has_failed:
            return
        if span.arguments is not None:
            self._note_arguments(span, *span.arguments)
            span.arguments = None
        tensors: list[tuple[Slot, Tensor]] = []
        results = list(output) if isinstance(output, tuple) else [output]
        slots = map_tree(results, "input", self._slot_maker(tensors), _ATOMS)
        nodes = [(slot, tensor._grad_node, tensor._output_index) for slot, tensor in tensors]
        nodes = [(slot, node, number) for slot, node, number in nodes if node is not None]
        if not nodes and not span.children:
            return
        leaving = self._walk(span, [node for _, node, _ in nodes])
        spans = self._spans.open
        if self._composes and spans:
            spans[-1].children.append((span.start, self._spans.latest, leaving))
        if call is not None and call.keeps_backward and nodes:
            self._hook(call, span, slots, nodes, leaving)

    def end_later(self, call: Call | None, span: Span | None, output: Any) -> None:
        """After a call whose result the program gets as another object, which is not yet there: it is known by its
        memory when it is an input of a later call. The result is held until then, so that its memory stays its own."""
        if span is None:
            return
        self._close(span)
        outputs = list(output) if isinstance(output, tuple) else [output]
        if call is not None and call.keeps_backward and span.inputs:
            late = LateCall(call, span, outputs)
            self._late.update({tensor.data_ptr(): late for tensor in outputs if isinstance(tensor, Tensor)})
            while len(self._late) > _MAX_LATE:
                self._forget_late(next(iter(self._late.values())))

    def _end_late(self, tensor: Tensor) -> None:
        late = self._late.get(tensor.data_ptr())
        number = tensor._output_index
        if late is None or number >= len(late.outputs) or late.outputs[number].shape != tensor.shape:
            return
        self._drop_late(late)
        node = tensor._grad_node
        slots = [Slot(f"input.{position}") for position in range(len(late.outputs))]
        outputs = [(slot, node, position) for position, slot in enumerate(slots)]
        self._hook(late.call, late.span, slots, outputs, self._walk(late.span, [node]))

    def _forget_late(self, late: LateCall) -> None:
        self._drop_late(late)
        self._recorder.coverage.add_unseen(NO_BACKWARD)

    def _drop_late(self, late: LateCall) -> None:
        self._late = {pointer: other for pointer, other in self._late.items() if other is not late}

    def forget_late(self) -> None:
        """The graph is complete, or the window is closed: what has not been used is not waited for."""
        while self._late:
            self._forget_late(next(iter(self._late.values())))

    def _close(self, span: Span) -> None:
        spans = self._spans.open
        if self._composes:
            while spans and spans.pop() is not span:
                pass

    # -- the walk ------------------------------------------------------------------------------------------------------

    def _walk(self, span: Span, outputs: Iterable[Any]) -> Consumers:
        """The edges that leave the call, over the nodes it made itself; those of the calls inside it are known."""
        leaving: Consumers = {}
        pending: list[Any] = []
        seen: set[Any] = set()
        start, children = span.start, span.children
        firsts = [child[0] for child in children]

        def visit(node: Any) -> None:
            number = node._sequence_nr()
            position = bisect_right(firsts, number - 1) - 1
            identity = identity_of(node)
            if identity not in seen and not (position >= 0 and number <= children[position][1]):
                seen.add(identity)
                pending.append(node)

        for node in outputs:
            if not node.is_leaf() and node._sequence_nr() > start:
                self._spans.latest = max(self._spans.latest, node._sequence_nr())
                visit(node)
        for _, _, consumers in children:
            for edge, users in consumers.items():
                inner = users[0][0].next_functions[users[0][1]][0]
                if inner.is_leaf() or edge in span.inputs or inner._sequence_nr() <= start:
                    leaving.setdefault(edge, []).extend(users)
                else:
                    visit(inner)
        while pending:
            node = pending.pop()
            for position, (parent, number) in enumerate(node.next_functions):
                if parent is None:
                    continue
                edge = identity_of(parent), number
                if parent.is_leaf() or edge in span.inputs or parent._sequence_nr() <= start:
                    leaving.setdefault(edge, []).append((node, position))
                else:
                    visit(parent)
        return leaving

    # -- the hooks -----------------------------------------------------------------------------------------------------

    def _hook(
        self, call: Call, span: Span, slots: Any, outputs: list[tuple[Slot, Any, int]], leaving: Consumers
    ) -> None:
        record = GradientRecord(self._recorder, call)
        record.inputs = slots
        record.outputs, record.outputs_by_keyword = span.slots, span.keyword_slots
        plan = HookPlan(record)
        for slot, node, number in outputs:
            plan.add_output(span, slot, node, number, leaving)
        plan.add_inputs(span, leaving)
        for node, wanted in plan.arriving.values():
            node.register_prehook(self._make_prehook(record, wanted))
        for node, wanted in plan.departing.values():
            node.register_hook(self._make_posthook(record, wanted, compiled_edges(node)))

    def _make_prehook(self, record: GradientRecord, wanted: list[Wanted]) -> Callable[[Any], None]:
        def receive_output_gradients(gradients: Any) -> None:
            if record.is_live:
                self._deliver(record, gradients, wanted)

        return receive_output_gradients

    def _make_posthook(
        self, record: GradientRecord, wanted: list[Wanted], edges: list[Kind | None] | None
    ) -> Callable[[Any, Any], None]:
        def receive_input_gradients(gradients: Any, _: Any) -> None:
            if not record.is_live:
                return
            if edges is not None:
                gradients = spread_gradients(gradients, edges)
                if gradients is None:
                    gradients = [None] * len(edges)
                    self._recorder.coverage.add_unseen(NOT_TOLD_APART)
            self._deliver(record, gradients, wanted)

        return receive_input_gradients

    def _deliver(self, record: GradientRecord, gradients: Any, wanted: list[Wanted]) -> None:
        try:
            task = self.note_backward_pass()
            if not record.is_begun:
                record.backward_pass = task
            with hidden():
                for position, slot in wanted:
                    record.receive(slot, gradients[position])
        except Exception as error:
            self._recorder.note_failure(record.call.backward_name, error)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def set_parameters(self, parameters: Mapping[int, tuple[str, str, Any]]) -> None:
        """Whose gradients are recorded: for the address of each parameter its module's stem, its name and the
        parameter. The nodes of parameters do not run, so the hooks are on the parameters, until their gradients have
        come and the window is closed, or the step ends."""
        self.remove_parameter_hooks()
        self._has_ended_pass, self._is_window_open = False, True
        self._parameters = [entry for entry in parameters.values() if entry[2].requires_grad]
        self.show_parameter_hooks()

    def close_window(self) -> None:
        """The window is closed; the hooks of parameters stay only if the backward pass is still to come."""
        self._is_window_open = False
        self.forget_late()
        if self._has_ended_pass or not is_recording_gradients():
            self.remove_parameter_hooks()

    def show_parameter_hooks(self) -> None:
        """Put the hooks on, unless they are."""
        if not self._parameter_hooks:
            for stem, name, parameter in self._parameters:
                self._parameter_hooks.append(hook_tensor(parameter, self._make_parameter_hook(stem, name)))

    def remove_parameter_hooks(self) -> None:
        """Nobody waits for the gradients of parameters any more."""
        self._parameters = []
        self.hide_parameter_hooks()

    def hide_parameter_hooks(self) -> None:
        """Take the hooks off, for a while: a function that is compiled now must not have them in it."""
        self._parameter_watch += 1
        handles, self._parameter_hooks = self._parameter_hooks, []
        self.removal.discard(handles)

    def _make_parameter_hook(self, stem: str, name: str) -> Callable[[Any], None]:
        recorder, generation, watch = self._recorder, self._recorder.generation, self._parameter_watch

        def receive_parameter_gradient(gradient: Any) -> None:
            if (recorder.generation, self._parameter_watch) != (generation, watch) or gradient is None:
                return
            try:
                self.note_backward_pass()
                with hidden():
                    recorder.add_parameter_gradient(stem, name, gradient)
            except Exception as error:
                recorder.note_failure(f"{stem}.{name}", error)

        return receive_parameter_gradient

    # -- backward passes -----------------------------------------------------------------------------------------------

    def note_backward_pass(self) -> int:
        """A hook has run: make sure that the end of this backward pass is noticed."""
        task = enter_pass()
        if task != NO_PASS and task not in self._tasks:
            self._tasks.add(task)
            self.forget_late()
            executor.queue_backward_final_callback(lambda: self._end_backward_pass(task))
        return task

    def forget_passes(self) -> None:
        """No backward pass is running: one that raised had no end that was noticed."""
        self._tasks.clear()

    def _end_backward_pass(self, task: int) -> None:
        self._tasks.discard(task)
        leave_pass()
        try:
            with hidden():
                if self._tasks:
                    self._recorder.end_nested_pass(task)
                    return
                self._has_ended_pass = True
                if not self._is_window_open:
                    self.remove_parameter_hooks()
                self.removal.remove()
                self._recorder.end_backward_pass()
        except Exception as error:
            self._recorder.note_failure("the end of a backward pass", error)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _note_arguments(self, span: Span, args: Any, kwargs: Any) -> None:
        span.slots = self._note_inputs(span, args, "output")
        slots = self._note_inputs(span, kwargs, "kwargs") if kwargs else None
        span.keyword_slots = slots if any(True for _ in iter_slots(slots)) else None

    def _note_inputs(self, span: Span, tree: Any, role: str) -> Any:
        tensors: list[tuple[Slot, Tensor]] = []
        slots = map_tree(tree, role, self._slot_maker(tensors), _ATOMS)
        for slot, tensor in tensors:
            node = tensor._grad_node
            if node is None:
                continue
            if self._late:
                self._end_late(tensor)
            if not node.is_leaf():
                self._spans.latest = max(self._spans.latest, node._sequence_nr())
            span.inputs.setdefault((identity_of(node), tensor._output_index), []).append(slot)
        return slots

    @staticmethod
    def _slot_maker(tensors: list[tuple[Slot, Tensor]]) -> Callable[[Any, str], Slot | None]:
        def make(value: Any, path: str) -> Slot | None:
            if not isinstance(value, Tensor) or not value._requires_grad:
                return None
            slot = Slot(path)
            tensors.append((slot, value))
            return slot

        return make
