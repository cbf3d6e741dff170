"""The hot path: what a framework tells the engine about each call. Knows no framework; keeps no tensor alive; waits for
no device.

The framework calls `begin_api` or `begin_module`, then `add_inputs`, runs the user's call, then `finish` or `fail`.
Gradients come back through `GradientRecord`. Names and counters belong to the step, so they advance whether or not a
call is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from tensorprobe.capture.backward_request import BackwardRequests
from tensorprobe.capture.call import Call, GradientRecord, Slot, container_of, slots_to_leaves
from tensorprobe.capture.call_count import CallCounts
from tensorprobe.capture.call_field import CallFields
from tensorprobe.capture.coverage import Coverage
from tensorprobe.capture.describe import Describer, Listener
from tensorprobe.capture.failure import RecordingFailures
from tensorprobe.capture.framework import TensorReader
from tensorprobe.capture.recompute import Recomputation, ThreadState
from tensorprobe.capture.root import Roots
from tensorprobe.capture.selector import Selector
from tensorprobe.capture.sink import Sink
from tensorprobe.capture.stack import StackTable
from tensorprobe.capture.storing import Storing
from tensorprobe.capture.undefined_gradient import UndefinedGradients
from tensorprobe.capture.watch import Watch, Watched, changes_inputs
from tensorprobe.config import CaptureConfig
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.model.tree import has_nested, tuple_paths

_MAX_ERROR_TEXT = 500
UNENDED = "had not ended when the step did"
EARLIER_PASS = "backward of a call, replaced by that of a later pass over the same graph"


class Recorder(CallFields):
    """Names calls, selects them, describes them and hands finished records to the sink."""

    def __init__(self, config: CaptureConfig, reader: TensorReader, describer: Describer, stacks: StackTable) -> None:
        self.reader = reader
        self.stacks = stacks
        self.records_apis = config.level in ("L1", "mix", "api_dump")
        self.records_modules = config.level in ("L0", "mix")
        self.records_layers = config.level == "api_dump"
        """Is a layer of the framework's library one call, in which nothing else is recorded?"""
        is_partial = config.list or config.scope or config.api_yaml or config.data_mode
        self.describes_every_call = not (is_partial or self.records_layers)
        """False where some calls, or parts of them, are left out: what these write is to be noticed all the same."""
        self.wants_loss = config.flight_recorder is not None and "loss_spike" in config.flight_recorder.on
        self.runs_compiled_eagerly = config.compiled == "eager"
        self.keeps_leaf_gradients = config.task not in ("statistics", "structure")
        """Is it noted which tensors hold the gradients of leaves? A replay needs it."""
        self.coverage = Coverage()
        self.generation = 0
        """Which step hooks belong to: gradients of an older one are not recorded."""
        self.sink: Sink | None = None
        self.roots: Roots | None = None
        """The models of a program that names none, where they are to be found."""
        self.after_backward_pass: Callable[[], None] = lambda: None
        self._describer = describer
        self.selector = Selector(config)
        self._watch = Watch(config.on_nonfinite, describer, reader)
        self._only_reads = not (
            self.selector.stores_any or config.on_nonfinite or reader.verifies or self.records_layers
        )
        """Is there nothing to do with a tensor but to make its leaf: no file, nobody who waits for NaN, no doubt?"""
        self.counts = CallCounts()
        self._threads = ThreadState()
        self.recomputation = Recomputation(self._threads)
        self._running: dict[Call, None] = {}
        """Forward calls that have begun and not ended."""
        self._open_backwards: dict[GradientRecord, None] = {}
        self._parameter_gradients: dict[str, dict[str, Any]] = {}
        self.backward_passes = BackwardRequests()
        self._undefined = UndefinedGradients()
        self._failures = RecordingFailures()
        describer.note_failure, describer.note_stale = self.note_failure, self.note_stale

    # -- calls, forward ------------------------------------------------------------------------------------------------

    def begin_api(self, stem: str, frame: FrameType | None) -> Call | None:
        """An API is called; None if nothing of it is wanted."""
        state = self._threads
        if state.replay is not None:
            call = self.recomputation.repeat(stem, self.coverage, is_counted=True)
            return call if call.keeps_forward or call.keeps_backward else None
        self.coverage.seen += 1
        index = self.counts.next(stem)
        parent = state.modules[-1] if state.modules else None
        call = self._name_call(stem, index, parent)
        for region in state.regions:
            region.add(call)
        is_wanted = self.selector.select(call)
        self.coverage.count_kept(call.keeps_forward, is_over=self.selector.is_over)
        if is_wanted:
            if state.functions:
                call.fields["inside"] = state.functions[-1]
            call.stack = self.stacks.capture(frame, parent.stack if parent is not None else None)
            return call
        self.selector.end(call.forward_name)
        return None

    def begin_module(
        self, stem: str, module_path: str | None, frame: FrameType | None, layer: str | None = None
    ) -> Call:
        """A module is called. It is followed even where it is not recorded, so that what it contains knows its path.
        `layer`: its class, if that is a layer of the framework's library."""
        state = self._threads
        parent = state.modules[-1] if state.modules else None
        if state.replay is not None:
            call = self.recomputation.repeat(stem, self.coverage, is_counted=self.records_modules)
            call.is_recorded = self.records_modules
            state.modules.append(call)
            return call
        if self.records_modules:
            self.coverage.seen += 1
            index = self.counts.next(stem)
            call = Call(stem, f"{stem}.forward.{index}", f"{stem}.backward.{index}", parent)
            call.is_pinned, call.is_passed_on = False, True
            self.selector.select(call)
            self.coverage.count_kept(call.keeps_forward, is_over=self.selector.is_over)
        else:
            call = Call(stem, stem, stem, parent)
            call.is_recorded = False
            call.note_listed(self.selector.is_listed)
        call.module_path = module_path
        call.stack = self.stacks.capture(frame, parent.stack if parent is not None else None)
        for region in state.regions:
            region.add(call)
        state.modules.append(call)
        return call

    def end_module(self, call: Call) -> None:
        """The module call is over, by return or by exception; so is all that it had opened."""
        modules = self._threads.modules
        while modules and modules.pop() is not call:
            pass

    def current_module(self) -> Call | None:
        """The innermost module call of this thread."""
        modules = self._threads.modules
        return modules[-1] if modules else None

    def add_inputs(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What the call is given, before it runs: it may change it in place."""
        if not call.keeps_forward or not self.selector.keeps_inputs:
            return
        self._running[call] = None
        stores = Storing.NONE if self._only_reads else self.selector.storing(call.forward_name)
        describe, slot = self._describer.describe, self._slot
        listen, name = self._watch.listen(call.watched), call.forward_name
        call.fields["input_args"] = describe(args, slot(name, "input"), stores=stores, listen=listen)
        by_name = describe(kwargs, slot(name, "kwargs"), stores=stores, listen=listen) if kwargs else {}
        call.fields["input_kwargs"] = by_name
        is_nested = has_nested(args) or has_nested(kwargs.values())
        if is_nested and (tuples := [*tuple_paths(args, "input"), *tuple_paths(kwargs, "kwargs")]):
            call.fields["tuples"] = tuples
        if call.watched and changes_inputs(call.stem, kwargs):
            self._watch.keep_copies(call.watched)

    def finish(self, call: Call, output: Any, note: str | None = None) -> None:
        """The call has returned."""
        if not call.keeps_forward:
            self.selector.end(call.forward_name)
            return
        if self._only_reads:
            if self.selector.keeps_outputs:
                call.fields["output"] = self._describe_results(call, output, Storing.NONE, None)
            if note is not None:
                call.fields["note"] = note
            self._emit_forward(call)
            return
        outputs: list[Watched] = []
        if self.selector.keeps_outputs:
            stores = self._storing_of_results(call)
            call.fields["output"] = self._describe_results(call, output, stores, self._watch.listen(outputs))
        finding = None
        if note is not None:
            call.fields["note"] = note
        elif call.watched or outputs:
            arguments = [call.fields[key] for key in ("input_args", "input_kwargs") if key in call.fields]
            finding = self._watch.find(call.forward_name, call.watched, outputs, arguments or None)
        self._emit_forward(call)
        self._watch.act(finding, call.stack)

    def fail(self, call: Call, error: BaseException) -> None:
        """The user's call has raised: its record says so, and nothing after it is lost."""
        if call.keeps_forward:
            call.fields["failed"] = f"{type(error).__name__}: {error}"[:_MAX_ERROR_TEXT]
            self._emit_forward(call)
        else:
            self.selector.end(call.forward_name)

    def break_off(self, call: Call, note: str) -> None:
        """What is around this call ends inside of it: it has inputs, and no result."""
        if call.keeps_forward:
            call.fields["note"] = note
            self._emit_forward(call)

    # -- calls, backward -----------------------------------------------------------------------------------------------

    def begin_backward(self, record: GradientRecord) -> None:
        """The first gradient of a call has come."""
        call = record.call
        call.keeps_backward = self.selector.begin(call.backward_name) and call.keeps_backward
        self._open_backwards[record] = None

    def end_backward(self, record: GradientRecord) -> None:
        """The last one has."""
        self._open_backwards.pop(record, None)
        call = record.call
        if call.keeps_backward:
            fields: dict[str, Any] = {}
            if self.selector.keeps_inputs:
                fields["input"] = slots_to_leaves(record.inputs)
            if self.selector.keeps_outputs:
                fields["output"] = slots_to_leaves(record.outputs)
                if record.outputs_by_keyword:
                    fields["output_kwargs"] = slots_to_leaves(record.outputs_by_keyword)
            call.tell_place(fields)
            if record.is_repeated:
                self.coverage.add_unseen(EARLIER_PASS)
            finding, given = None, fields.get("input")
            if record.watched is not None:
                finding = self._watch.find(call.backward_name, *record.watched, None if given is None else [given])
                record.watched = None
            self._emit(call.backward_name, fields, call.parent.backward_name if call.parent is not None else None, None)
            self._watch.act(finding, call.stack)
        self.selector.end(call.backward_name)

    def add_gradients(self, first: Any, second: Any) -> Any:
        return self.reader.add(first, second)

    def describe_gradient(self, record: GradientRecord, slot: Slot) -> Any:
        """A leaf for a gradient that is complete."""
        call, is_input = record.call, slot.path.startswith("input")
        if not call.keeps_backward or not (self.selector.keeps_inputs if is_input else self.selector.keeps_outputs):
            return None
        if self._only_reads:
            leaf = self.reader.read(slot.share, None if is_input else call.backward_name)
            if call.is_undefined or self._undefined.records:
                self._undefined.note(call, leaf)
            return leaf
        stores = self.selector.storing(call.backward_name)
        if stores is Storing.LEAVES:  # those of a call that is executed again are computed again
            is_needed = call.is_pinned or (call.has_own_backward and not is_input)
            stores = Storing.ALL if is_needed and self.reader.traces_values else Storing.NONE
        name = self._slot(call.backward_name, slot.path, record)
        leaf = self._describer.describe_tensor(slot.share, name, None if is_input else call.backward_name, stores)
        self._undefined.note(call, leaf)
        if record.watched is None:
            record.watched = ([], [])
        listen = self._watch.listen(record.watched[0 if is_input else 1])
        if listen is not None:
            listen(leaf, name, self.reader.hold(slot.share))
        return leaf

    def add_parameter_gradient(self, stem: str, parameter: str, gradient: Any) -> None:
        """The gradient of a parameter is complete for this backward pass."""
        name = f"{stem}.{PARAMETERS_GRAD}"
        is_wanted = self.selector.keeps_backward and self.selector.keeps_outputs and self.selector.is_listed(name)
        if self.selector.begin(name) and is_wanted:
            stores = self.selector.storing(name)
            if stores is Storing.LEAVES:
                stores = Storing.NONE
            leaf = self._describer.describe_tensor(gradient, f"{name}.{parameter}", None, stores)
            self._undefined.note(None, leaf)
            self._parameter_gradients.setdefault(stem, {})[parameter] = [leaf]

    def keep_tensor(self, tensor: Any, slot: str, *, is_made: bool = False) -> str | None:
        """The file of a tensor that belongs to no record; None where it gets none. `is_made`: it can be computed
        again."""
        stores = self.selector.storing(slot)
        if stores is Storing.NONE or (is_made and stores is not Storing.ALL):
            return None
        return self._describer.describe_tensor(tensor, slot, None, Storing.ALL).data_name

    def end_nested_pass(self, backward_pass: int) -> None:
        """A backward pass that ran inside another one is over: write the records that it left open."""
        for record in [record for record in self._open_backwards if record.backward_pass == backward_pass]:
            record.finish()

    def end_backward_pass(self) -> None:
        """The last backward pass is over: write the records that are still open, then the parameter gradients."""
        for record in list(self._open_backwards):
            try:
                record.finish()
            except Exception as error:  # one that fails takes no other with it
                self._open_backwards.pop(record, None)
                self.note_failure(record.call.backward_name, error)
        gradients, self._parameter_gradients = self._parameter_gradients, {}
        for stem, fields in gradients.items():
            self._emit(f"{stem}.{PARAMETERS_GRAD}", fields, None, None)
        self.after_backward_pass()

    # -- life ----------------------------------------------------------------------------------------------------------

    def begin_step(self, sink: Sink) -> None:
        """Names start anew; hooks of the steps before do nothing any more."""
        self.sink = sink
        self.coverage = Coverage()
        self.backward_passes = BackwardRequests()
        self.counts.clear()
        self._undefined.clear()
        self._describer.begin_step()
        self.selector.restart()

    def end_step(self) -> None:
        """Write what is open, and let go of the step."""
        for call in list(self._running):  # the program was broken off, or ends the step inside of it
            self.break_off(call, UNENDED)
            call.keeps_forward = False
        self.end_backward_pass()
        self.generation += 1
        self.sink = None
        self.reader.forget()

    def abandon(self) -> None:
        """In a forked child: no hook or patch that is still there does anything."""
        self.generation += 1
        self.sink = None
        self._running.clear()
        self._open_backwards.clear()
        self._parameter_gradients.clear()

    def note_failure(self, where: str, error: BaseException) -> None:
        """Something went wrong inside capture: it is said once, and counted; the user's program goes on, unless it was
        to be stopped."""
        self.coverage.failed += self._failures.note(where, error)

    def note_stale(self, slot: str, difference: str) -> None:
        """Verify mode has found a value that had changed unnoticed: it is said once per kind of call, and counted."""
        self.coverage.stale += 1
        self._failures.note_stale(slot, difference)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _name_call(self, stem: str, index: int, parent: Call | None) -> Call:
        return Call(stem, f"{stem}.{index}.forward", f"{stem}.{index}.backward", parent)

    def _describe_results(self, call: Call, output: Any, stores: Storing, listen: Listener | None) -> Any:
        results = list(output) if isinstance(output, tuple) else [output]
        name, describe = call.forward_name, self._describer.describe
        return describe(results, self._slot(name, "output"), produced_by=name, stores=stores, listen=listen)

    def _emit_forward(self, call: Call) -> None:
        self._running.pop(call, None)
        fields, call.fields = call.fields, {}
        if call.watched:
            call.watched = []
        call.tell_place(fields)
        if call.original is not None:
            self.recomputation.add_check(call.original, fields, self.coverage)
        elif self._threads.regions:
            call.kept_fields = fields
        self._emit(call.forward_name, fields, container_of(call), call)
        self.selector.end(call.forward_name)

    def _emit(self, name: str, fields: dict[str, Any], parent: str | None, call: Call | None) -> None:
        if self.sink is not None:
            self.coverage.recorded += 1
            self.sink.add_record(name, fields, parent, call.stack if call is not None else None)
