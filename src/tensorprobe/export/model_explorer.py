"""A run as graphs for Google's Model Explorer, and data for their nodes.

    graph.json        {"label", "graphs": [{"id", "nodes": [{"id", "label", "namespace", "incomingEdges", …}]}]}
    norm.json …       {graph id: {"results": {node id: {"value"}}, "gradient" or "thresholds"}}

These are the classes GraphCollection and ModelNodeData of its package. One graph for each step and rank. Modules are
namespaces, calls are nodes; a module that was recorded and whose calls were not is a node too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorprobe.compare.row import describe_value
from tensorprobe.export.compared_error import ComparedErrors
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.name import BACKWARD
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.step import Run, read_run
from tensorprobe.store import stored_file
from tensorprobe.store.disk import open_whole, writing
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.layout import make_folder
from tensorprobe.store.reader import Dump
from tensorprobe.store.slot import PlainSlot, TensorSlot

GRAPH_FILE, NORM_FILE, NONFINITE_FILE, ERROR_FILE = "graph.json", "norm.json", "nonfinite.json", "error.json"
_GRADIENT = [{"stop": 0, "bgColor": "#fff7bc"}, {"stop": 1, "bgColor": "#d95f0e"}]
_THRESHOLDS = [
    {"value": 1e-7, "bgColor": "#f7fbff"},
    {"value": 1e-5, "bgColor": "#c6dbef"},
    {"value": 1e-3, "bgColor": "#6baed6"},
    {"value": 1e-1, "bgColor": "#fd8d3c"},
    {"value": 1.7976931348623157e308, "bgColor": "#d94801", "textColor": "#ffffff"},
]
"""Errors differ by orders of magnitude: a gradient would show the largest alone."""


def write_model_explorer(dump: Dump, folder: Path, errors: ComparedErrors | None = None) -> list[Path]:
    """graph.json, and one file for each kind of node data; that of the errors where a comparison is given."""
    graphs: list[dict[str, Any]] = []
    data: dict[str, dict[str, Any]] = {name: {} for name in (NORM_FILE, NONFINITE_FILE)}
    for rank in dump.ranks():
        run = read_run(rank)
        calls = select_nodes(run)
        graphs.append(build_graph(run, calls))
        data[NORM_FILE][rank.name] = _describe_data({call.name: _norm_of(call) for call in calls})
        data[NONFINITE_FILE][rank.name] = _describe_data({call.name: _count_nonfinite(call) for call in calls})
        if errors is not None:
            found = errors.find(rank.name, calls)
            data.setdefault(ERROR_FILE, {})[rank.name] = _describe_data(found, thresholds=_THRESHOLDS)
    contents = {GRAPH_FILE: {"label": dump.path.name, "graphs": graphs}, **data}
    with writing(folder):
        make_folder(folder)
        for name, content in contents.items():
            with open_whole(folder / name) as file:
                file.write(json.dumps(content, allow_nan=False).encode("ascii"))
    return [folder / name for name in contents]


def select_nodes(run: Run) -> list[Call]:
    """The calls that are drawn: all but modules whose own calls were recorded, and gradients of parameters."""
    containers = {call.parent for call in run.calls}
    drawn = (call for call in run.calls if call.kind in ("api", "module"))
    return [call for call in drawn if call.kind == "api" or call.name not in containers]


def build_graph(run: Run, calls: list[Call]) -> dict[str, Any]:
    """One step of one process."""
    nodes = {call.name for call in calls}
    passed_on = {call.name for call in run.calls if call.kind == "module" and call.name not in nodes}
    flow = Flow(run, passed_on)
    return {
        "id": run.rank.name,
        "nodes": [
            {
                "id": call.name,
                "label": _label(call),
                "namespace": _namespace(run, call),
                "attrs": list(_iter_attributes(run, call)),
                "incomingEdges": list(_iter_edges(flow, call, nodes)),
                "outputsMetadata": list(_iter_outputs(call)),
            }
            for call in calls
        ],
        "groupNodeAttributes": {"": {"path": stored_file.show(run.rank.folder), "framework": run.framework}},
    }


def _label(call: Call) -> str:
    return f"{call.path.rpartition('.')[2] or 'model'} ({call.op})" if call.kind == "module" else call.op


def _namespace(run: Run, call: Call) -> str:
    """`blocks/0/attention`; what happened in the backward pass is beside the model, not among its layers, and what the
    framework called itself is with whoever called it."""
    path = run.context_path(call) or call.caller or ""
    segments = path.rpartition(".")[0].split(".") if call.kind == "module" else path.split(".")
    first = ["backward"] if call.phase == BACKWARD else []
    return "/".join([*first, *(segment.replace("/", "∕") for segment in segments if segment)])


def _iter_attributes(run: Run, call: Call) -> Iterator[dict[str, str]]:
    location = run.location(call)
    told = {
        "direction": call.direction,
        "module": run.context_path(call),
        "location": describe_frame(location) if location else None,
        "made by": call.caller,
        "failed": call.failed,
    }
    arguments = {slot.slot: describe_value(slot) for slot in call.slots if isinstance(slot, PlainSlot)}
    yield from ({"key": key, "value": str(value)} for key, value in {**told, **arguments}.items() if value)


def _iter_edges(flow: Flow, call: Call, nodes: set[str]) -> Iterator[dict[str, str]]:
    inputs = [slot for slot in call.tensors if slot.is_input]
    for number, slot in enumerate(inputs):
        producer = flow.producer(slot)
        if producer is not None and producer is not call and producer.name in nodes:
            output = str(_find_output(producer, slot))
            yield {"sourceNodeId": producer.name, "sourceNodeOutputId": output, "targetNodeInputId": str(number)}


def _find_output(producer: Call, value: TensorSlot) -> int:
    """Which of its results it was: the one with the same numbers; the first where several have."""
    results = [slot for slot in producer.tensors if not slot.is_input]
    same = (
        n for n, slot in enumerate(results) if (slot.norm, slot.max, slot.min) == (value.norm, value.max, value.min)
    )
    return next(same, 0)


def _iter_outputs(call: Call) -> Iterator[dict[str, Any]]:
    results = [slot for slot in call.tensors if not slot.is_input]
    for number, slot in enumerate(results):
        shape = ",".join(map(str, slot.shape or ()))
        told = {
            "tensor_name": f"{call.name}.{slot.slot}",
            "tensor_shape": f"{short_dtype(slot.dtype)}[{shape}]",
            **{name: getattr(slot, name) for name in ("max", "min", "mean", "norm", "nan_count", "inf_count")},
        }
        attributes = [{"key": key, "value": str(value)} for key, value in told.items() if value is not None]
        yield {"id": str(number), "attrs": attributes}


def _describe_data(values: Mapping[str, float | None], **look: Any) -> dict[str, Any]:
    """Numbers that JSON lacks are left out: where they are is in nonfinite.json."""
    results = {name: {"value": value} for name, value in values.items() if value is not None and math.isfinite(value)}
    return {"results": results, **(look or {"gradient": _GRADIENT})}


def _norm_of(call: Call) -> float | None:
    norms = [float(slot.norm) for slot in call.tensors if not slot.is_input and slot.norm is not None]
    return max(norms, default=None)


def _count_nonfinite(call: Call) -> float | None:
    """How many elements of its results are NaN or Inf; at least one where the dump has no counts."""
    results = [slot for slot in call.tensors if not slot.is_input and (slot.has_nan or slot.has_inf)]
    return float(sum((slot.nan_count or 0) + (slot.inf_count or 0) or 1 for slot in results)) or None
