"""The gradients of one call: hooks on the autograd edges that the call made. Its arguments are not touched.

A call knows the sequence numbers between which its autograd nodes were made. Walking back from its outputs over those
nodes finds the edges that leave it; a hook on a node with an edge to one of the call's inputs receives exactly this
call's share of that input's gradient, and the shares add up. Module calls compose the edges of the calls inside them,
so that each node is visited once. Hooks hold slots and numbers, never tensors or nodes: a closure over its own graph
would keep it alive.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from tensorprobe.capture.call import Call, GradientRecord, Slot, iter_slots
from tensorprobe.capture.collector import collector
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.gradient_slot import make_slots
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.hook_plan import Consumers, Edge, HookPlan, Span, Wanted, plan_one_node, sequence_number
from tensorprobe.capture.torch.node import AccumulateGrad, find_node
from tensorprobe.capture.torch.reduced_gradient import ReducedGradients
from tensorprobe.model.tree import is_plain

_graph_task: Callable[[], int] = torch._C._current_graph_task_id

_HOOKED = "tensorprobe"
_SWEEP = 64  # so many handles before those of nodes that are gone are looked for
"""The key in a node's metadata that says for which step it has been hooked."""
_CAST = "ToCopyBackward0"


def is_in_backward() -> bool:
    """Is this thread inside a backward pass?"""
    return _graph_task() != -1


class GradientTracer:
    """Follows the graph that calls make, and installs the hooks that bring their gradients back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._local = threading.local()
        self._composes = recorder.records_modules
        self._parameters: dict[int, tuple[str, str, Any]] = {}
        self._parameter_hooks: list[Any] = []
        self._sweep_at = _SWEEP
        self._tasks: set[int] = set()
        """The backward passes that are running: more than one, where one runs inside another."""
        self._generation = -1
        self.reduced = ReducedGradients(recorder)

    def set_parameters(self, parameters: Mapping[int, tuple[str, str, Any]]) -> None:
        """Whose gradients are recorded: for the address of each parameter its module's stem, its name and the
        parameter."""
        self._parameters = dict(parameters)

    def add_parameter(self, parameter: torch.Tensor, stem: str, name: str) -> None:
        """One more whose gradient is recorded."""
        self._parameters[id(parameter)] = (stem, name, parameter)

    def begin(self, args: Any, kwargs: Any, *, wants_slots: bool) -> Span | None:
        """Before a call: note where its inputs hang in the graph. An in-place call changes that."""
        if not (wants_slots or self._composes):
            return None  # nobody waits for a gradient
        if not torch.is_grad_enabled() or not self._recorder.recomputation.follows_gradients:
            return None
        span = Span()
        if wants_slots:
            span.slots = self.note_inputs(span, args, "output")
            if kwargs and not is_plain(kwargs.values()):
                slots = self.note_inputs(span, kwargs, "kwargs")
                span.keyword_slots = slots if any(True for _ in iter_slots(slots)) else None
        if self._composes:
            self._open_spans().append(span)
        return span

    def end(self, call: Call | None, span: Span | None, output: Any, *, has_failed: bool = False) -> None:
        """After a call: hook its outputs and the edges that leave it."""
        if span is None:
            return
        spans = self._open_spans() if self._composes else []
        while spans and spans.pop() is not span:
            pass
        if has_failed:
            return
        if not self._composes and isinstance(output, torch.Tensor) and self._hook_one_node(call, span, output):
            return
        tensors: list[tuple[Slot, torch.Tensor]] = []
        results = list(output) if isinstance(output, tuple) else [output]
        slots = make_slots(results, "input", tensors)
        if not tensors and not span.children:
            return
        leaving = self._walk(span, [tensor for _, tensor in tensors])
        if self._composes and spans:
            spans[-1].children.append((span.start, sequence_number(), leaving))
        if call is not None and call.keeps_backward and tensors:
            self._hook(call, span, slots, tensors, leaving)

    # -- the walk ------------------------------------------------------------------------------------------------------

    def _walk(self, span: Span, outputs: Sequence[torch.Tensor]) -> Consumers:
        """The edges that leave the call, over the nodes it made itself; those of the calls inside it are known."""
        leaving: Consumers = {}
        pending: list[Any] = []
        seen: set[Any] = set()
        start, children = span.start, span.children
        firsts = [child[0] for child in children]

        def visit(node: Any) -> None:
            if firsts:
                number = node._sequence_nr()
                position = bisect_right(firsts, number) - 1
                if position >= 0 and number < children[position][1]:
                    return
            if node not in seen:
                seen.add(node)
                pending.append(node)

        for tensor in outputs:
            node = find_node(tensor)
            if node is not None and node._sequence_nr() >= start:
                visit(node)
        for _, _, consumers in children:
            for edge, users in consumers.items():
                # numbers belong to threads: an input that another one made may have any
                if edge[0] is None or edge in span.inputs or edge[0]._sequence_nr() < start:
                    leaving.setdefault(edge, []).extend(users)
                else:
                    visit(edge[0])
        while pending:
            node = pending.pop()
            for position, (parent, number) in enumerate(node.next_functions):
                if parent is None:
                    continue
                found = self._find_leaving(parent, number, span)
                if found is None:
                    visit(parent)
                else:
                    leaving.setdefault(found, []).append((node, position))
        return leaving

    def _find_leaving(self, node: Any, number: int, span: Span) -> Edge | None:
        """The edge to this output of a node, if it leaves the call; None where the node is one of its own."""
        if type(node) is AccumulateGrad:
            leaf = node.variable
            if id(leaf) in self._parameters:
                self._hook_parameter(leaf, node)
            return None, id(leaf)
        if type(node).__name__ == _CAST and (cast := self._cast_leaf(node, span)) is not None:
            return None, id(cast)
        return (node, number) if node._sequence_nr() < span.start or (node, number) in span.inputs else None

    def _cast_leaf(self, node: Any, span: Span) -> torch.Tensor | None:
        """The leaf that autocast has cast for a call. The cast may be older than the call: it is kept and shared, so
        the share of one call is what comes before it."""
        parent = node.next_functions[0][0]
        if type(parent) is not AccumulateGrad or (None, id(parent.variable)) not in span.inputs:
            return None
        if id(parent.variable) in self._parameters:
            self._hook_parameter(parent.variable, parent)
        leaf: torch.Tensor = parent.variable
        return leaf

    # -- the hooks -----------------------------------------------------------------------------------------------------

    def _hook_one_node(self, call: Call | None, span: Span, output: torch.Tensor) -> bool:
        """The hooks of the usual call, which returned one tensor and has one node; False for any other. What comes to
        the node is taken before it runs: it may raise."""
        if call is None or not call.keeps_backward or not output.requires_grad:
            return True
        record = GradientRecord(self._recorder, call)
        plan = plan_one_node(record, span, output, self._find_leaving)
        if plan is None:
            return False
        node, arriving, departing = plan
        record.outputs, record.outputs_by_keyword = span.slots, span.keyword_slots
        node.register_prehook(partial(self._deliver, record, arriving))
        if departing:
            node.register_hook(partial(self._deliver, record, departing))
        return True

    def _hook(
        self, call: Call, span: Span, slots: Any, tensors: list[tuple[Slot, torch.Tensor]], leaving: Consumers
    ) -> None:
        record = GradientRecord(self._recorder, call)
        record.inputs = slots
        record.outputs, record.outputs_by_keyword = span.slots, span.keyword_slots
        plan = HookPlan(record)
        for slot, tensor in tensors:
            plan.add_output(span, slot, tensor, leaving)
        plan.add_inputs(span, leaving)
        for node, wanted in plan.arriving.items():
            node.register_prehook(partial(self._deliver, record, wanted))
        for node, wanted in plan.departing.items():
            node.register_hook(partial(self._deliver, record, wanted))

    def _deliver(self, record: GradientRecord, wanted: list[Wanted], gradients: Any, _: Any = None) -> None:
        """A node is about to run, with the gradients of its outputs; or has run, and gives on those of its inputs."""
        if record.generation != self._recorder.generation:
            return  # the graph still runs after `step()`: its gradients belong to no step that is being recorded
        before = collector.begin()
        try:
            task = self.note_backward_pass()
            if not record.is_begun:
                record.backward_pass = task
            with hidden():
                for position, slot, window in wanted:
                    gradient = gradients[position]
                    record.receive(slot, gradient if window is None or gradient is None else window.cut(gradient))
            collector.end(before)
        except Exception as error:
            self._recorder.note_failure(record.call.backward_name, error)

    def _hook_parameter(self, parameter: torch.Tensor, node: Any) -> None:
        """Record the gradient of a parameter when a backward has added its part. Each graph has a node of its own for
        it, except where somebody keeps the node alive, as DDP does: once per node and step."""
        if self._generation != self._recorder.generation:
            self.remove_parameter_hooks()
            self._generation = self._recorder.generation
        if node.metadata.get(_HOOKED) == self._generation:
            return
        node.metadata[_HOOKED] = self._generation
        stem, name, _ = self._parameters[id(parameter)]
        reference = weakref.ref(parameter)
        recorder, generation = self._recorder, self._recorder.generation

        def receive_parameter_gradient(_: Any, incoming: Any) -> None:
            leaf = reference()
            if recorder.generation != generation or leaf is None:
                return
            before = collector.begin()
            try:
                self.note_backward_pass()
                with hidden():
                    gradient = leaf.grad
                    gradient = gradient if gradient is not None else incoming[0]  # an optimizer in backward clears it
                    if gradient is not None:
                        recorder.add_parameter_gradient(stem, name, gradient)
                collector.end(before)
            except Exception as error:
                recorder.note_failure(f"{stem}.{name}", error)

        self._parameter_hooks.append(node.register_hook(receive_parameter_gradient))
        if len(self._parameter_hooks) >= self._sweep_at:
            self._forget_dead_hooks()

    def _forget_dead_hooks(self) -> None:
        """The handles of nodes that are gone with their graph: without `step()` they would gather for ever."""
        self._parameter_hooks = [handle for handle in self._parameter_hooks if handle.hooks_dict_ref() is not None]
        self._sweep_at = max(_SWEEP, 2 * len(self._parameter_hooks))

    def remove_parameter_hooks(self) -> None:
        for handle in self._parameter_hooks:
            handle.remove()
        self._parameter_hooks.clear()

    def note_backward_pass(self) -> int:
        """A hook has run: make sure that the end of this backward pass is noticed."""
        task = _graph_task()
        if task != -1 and task not in self._tasks:
            self._tasks.add(task)
            Variable._execution_engine.queue_callback(lambda: self._end_backward_pass(task))
        return task

    def forget_passes(self) -> None:
        """No backward pass is running: one that raised had no end that was noticed."""
        self._tasks.clear()

    def _end_backward_pass(self, task: int) -> None:
        if self.reduced:  # what DDP and FSDP do at the end of the pass was queued by now, and comes first
            Variable._execution_engine.queue_callback(lambda: self._close_backward_pass(task))
        else:
            self._close_backward_pass(task)

    def _close_backward_pass(self, task: int) -> None:
        self._tasks.discard(task)
        try:
            with hidden():
                if self._tasks:
                    self._recorder.end_nested_pass(task)
                else:
                    self.reduced.read()
                    self._recorder.end_backward_pass()
        except Exception as error:
            self._recorder.note_failure("the end of a backward pass", error)

    # -- inside --------------------------------------------------------------------------------------------------------

    def note_inputs(self, span: Span, tree: Any, role: str) -> Any:
        """What a call is given, as slots for the gradients that it gives back."""
        tensors: list[tuple[Slot, torch.Tensor]] = []
        slots = make_slots(tree, role, tensors)
        inputs, slot_of = span.inputs, span.slot_of
        for slot, tensor in tensors:
            node = find_node(tensor)
            edge = (node, tensor.output_nr) if node is not None else (None, id(tensor))
            if edge in inputs:
                inputs[edge].append(slot)
            else:
                inputs[edge] = [slot]
            slot_of[id(tensor)] = slot
        return slots

    def _open_spans(self) -> list[Span]:
        try:
            spans: list[Span] = self._local.spans
        except AttributeError:
            spans = self._local.spans = []
        return spans
