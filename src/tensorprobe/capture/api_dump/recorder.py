"""The level of api_dump: a layer of the framework's library is one call, and what is called outside of layers is
recorded by itself. Users' modules and containers are followed for their paths.

What a layer calls is noted in its record, without statistics: a replay makes these calls in the place of the layer.
Where a tensor does not tell which value it has, as in MindSpore, what is made inside has files."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

from tensorprobe.capture.api_dump.describe import ApiDumpDescriber
from tensorprobe.capture.api_dump.selector import ApiDumpSelector
from tensorprobe.capture.call import Call, GradientRecord
from tensorprobe.capture.describe import Listener, describe_plain
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.storing import Storing
from tensorprobe.model.name import LAYER_PREFIX
from tensorprobe.model.tree import map_tree, tuple_paths


class LayerRecorder(Recorder):
    """Writes `NN_Conv2d_0_forward`, `Functional_relu_0_backward`, `Tensor___add___3_forward`."""

    selector: ApiDumpSelector  # type: ignore[assignment]
    _describer: ApiDumpDescriber

    def use_selector(self, selector: ApiDumpSelector) -> None:
        """What the window that begins wants."""
        self.selector = selector

    def begin_api(self, stem: str, frame: FrameType | None) -> Call | None:
        if self._is_in_layer():
            return self._begin_inside(stem)
        if self._threads.replay is None and self._is_made_by_framework(frame):
            self.coverage.excluded += 1
            return None
        return super().begin_api(stem, frame)

    def _begin_inside(self, stem: str) -> Call | None:
        """A call that a layer makes. Only a replay asks for it: where no tensors are stored there is none."""
        layer = next(call for call in self._threads.modules if call.is_recorded)
        if self._threads.replay is not None or not self.stores_tensors(layer) or not self._notes_parts:
            return None
        calls = layer.fields.setdefault("calls", [])
        call = Call(stem, f"{layer.forward_name}.{len(calls)}", layer.backward_name, layer)
        call.layer, call.keeps_forward = layer, True
        calls.append({"name": stem})
        call.fields = calls[-1]
        return call

    def add_inputs(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if call.layer is None:
            super().add_inputs(call, args, kwargs)
            return
        call.fields["input_args"] = self._trace(call, args, "input")
        call.fields["input_kwargs"] = self._trace(call, dict(kwargs), "kwargs")
        call.fields["tuples"] = [*tuple_paths(args, "input"), *tuple_paths(kwargs, "kwargs")]

    def add_written(self, call: Call, tensors: Mapping[str, Any]) -> None:
        if call.layer is None:
            super().add_written(call, tensors)

    def finish(self, call: Call, output: Any, note: str | None = None) -> None:
        if call.layer is None:
            super().finish(call, output, note)
        else:
            results = list(output) if isinstance(output, tuple) else [output]
            call.fields["output"] = self._trace(call, results, "output", call.layer.forward_name)

    def fail(self, call: Call, error: BaseException) -> None:
        if call.layer is None:
            super().fail(call, error)

    @property
    def _notes_parts(self) -> bool:
        """Where values are known by their files only, a window that leaves files out has too little for a replay."""
        return self.reader.notes_parts and (self.reader.traces_values or not self._describer.is_filtered)

    def _trace(self, call: Call, tree: Any, role: str, produced_by: str | None = None) -> Any:
        """The tensors as what they are, without their statistics."""
        reader = self.reader

        def leaf(value: Any, path: str) -> Any:
            if not isinstance(value, reader.tensor_type):
                return None if value is None else reader.describe_object(value) or describe_plain(value)
            found = {**reader.trace(value, produced_by), "data_name": self._describer.find_file(value, path)}
            return {key: item for key, item in found.items() if item is not None}

        return map_tree(tree, self._slot(call.forward_name, role), leaf, reader.atoms)

    def begin_module(
        self, stem: str, module_path: str | None, frame: FrameType | None, layer: str | None = None
    ) -> Call:
        if layer is None or self._is_in_layer():
            return super().begin_module(stem, module_path, frame)
        state = self._threads
        call = self._begin_layer(f"{LAYER_PREFIX}.{layer}", module_path, frame)
        state.modules.append(call)
        return call

    def _begin_layer(self, stem: str, module_path: str | None, frame: FrameType | None) -> Call:
        state = self._threads
        if state.replay is not None:
            return self.recomputation.repeat(stem, self.coverage, is_counted=True)
        self.coverage.seen += 1
        parent = state.modules[-1] if state.modules else None
        call = self._name_call(stem, self.counts.next(stem), parent)
        if module_path is not None:
            call.module_path = module_path
        if self.selector.select(call):
            call.stack = self.stacks.capture(frame, parent.stack if parent is not None else None)
        self.coverage.count_kept(call.keeps_forward, is_over=self.selector.is_over)
        for region in state.regions:
            region.add(call)
        return call

    def _is_in_layer(self) -> bool:
        return any(call.is_recorded for call in self._threads.modules)

    def _is_made_by_framework(self, frame: FrameType | None) -> bool:
        """An optimizer, clipping, DDP: what they call is nothing of the network, and would only move its counters."""
        module = self.current_module()
        return self.stacks.capture(frame, module.stack if module is not None else None).caller is not None

    def _name_call(self, stem: str, index: int, parent: Call | None) -> Call:
        name = f"{stem.replace('.', '_', 1)}_{index}"
        return Call(stem, f"{name}_forward", f"{name}_backward", parent)

    def _slot(self, name: str, path: str, backward: GradientRecord | None = None) -> str:
        """The gradient of a single result has no number, as the result has none."""
        if backward is not None and path.startswith("input.0") and len(backward.inputs) == 1:
            path = "input" + path.removeprefix("input.0")
        return f"{name}_{path}"

    def _describe_results(self, call: Call, output: Any, stores: Storing, listen: Listener | None) -> Any:
        if isinstance(output, tuple) and len(output) != 1:
            return super()._describe_results(call, output, stores, listen)
        single = output[0] if isinstance(output, tuple) else output
        slot, name = self._slot(call.forward_name, "output"), call.forward_name
        return [self._describer.describe(single, slot, produced_by=name, stores=stores, listen=listen)]
