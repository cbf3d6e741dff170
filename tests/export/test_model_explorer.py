"""Graphs and node data as Model Explorer documents them: its classes GraphCollection and ModelNodeData."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.export.compared_error import read_errors
from tensorprobe.export.model_explorer import write_model_explorer
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import backward, forward, tensor, write_rank

NODE_KEYS = {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"}
LINEAR, RELU = "Functional.linear.0.forward", "Torch.relu.0.forward"


def _records() -> dict[str, Any]:
    hidden = tensor(3.0, source=LINEAR)
    bad = tensor(math.nan) | {"nan_count": 2, "inf_count": 1}
    return {
        LINEAR: forward(tensor(), output=tensor(3.0), module_path="block.fc"),
        "Module.block.fc.Linear.forward.0": forward(tensor(), output=hidden),
        RELU: forward(hidden, 0.5, output=bad, module_path="block"),
        "Module.block.Block.forward.0": forward(tensor(), output=bad),
        "Torch.relu.0.backward": backward(tensor(), module_path="block"),
    }


PARENTS = {
    LINEAR: "Module.block.fc.Linear.forward.0",
    "Module.block.fc.Linear.forward.0": "Module.block.Block.forward.0",
    RELU: "Module.block.Block.forward.0",
    "Module.block.Block.forward.0": None,
}


def _write(tmp_path: Path, records: dict[str, Any], parents: Any = None) -> Path:
    write_rank(tmp_path / "dump" / "step0" / "rank", records, parents)
    return tmp_path / "dump"


def _export(path: Path, folder: Path, **more: Any) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    files = write_model_explorer(open_dump(path), folder, **more)
    return {file.name: json.loads(file.read_text(), parse_constant=refuse) for file in files}


def _nodes(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (graph,) = content["graph.json"]["graphs"]
    return {node["id"]: node for node in graph["nodes"]}


def test_calls_are_nodes_in_the_namespaces_of_their_modules(tmp_path: Path) -> None:
    content = _export(_write(tmp_path, _records(), PARENTS), tmp_path / "out")
    assert content["graph.json"]["label"] == "dump"
    assert content["graph.json"]["graphs"][0]["id"] == "step0/rank"
    nodes = _nodes(content)
    assert {name: (node["label"], node["namespace"]) for name, node in nodes.items()} == {
        LINEAR: ("linear", "block/fc"),
        RELU: ("relu", "block"),
        "Torch.relu.0.backward": ("relu", "backward/block"),
    }
    assert all(set(node) == NODE_KEYS for node in nodes.values())


def test_what_the_framework_calls_itself_is_a_layer_of_its_own(tmp_path: Path) -> None:
    path = _write(tmp_path, {"Tensor.add_.0.forward": forward(caller="optimizer")})
    assert _nodes(_export(path, tmp_path / "out"))["Tensor.add_.0.forward"]["namespace"] == "optimizer"


def test_edges_are_the_data_flow(tmp_path: Path) -> None:
    nodes = _nodes(_export(_write(tmp_path, _records(), PARENTS), tmp_path / "out"))
    assert nodes[LINEAR]["incomingEdges"] == []
    assert nodes[RELU]["incomingEdges"] == [
        {"sourceNodeId": LINEAR, "sourceNodeOutputId": "0", "targetNodeInputId": "0"}
    ]


def test_what_a_module_passes_on_comes_from_the_call_inside_it(tmp_path: Path) -> None:
    records = _records()
    records[RELU] = forward(tensor(3.0, source="Module.block.fc.Linear.forward.0"), module_path="block")
    nodes = _nodes(_export(_write(tmp_path, records, PARENTS), tmp_path / "out"))
    assert [edge["sourceNodeId"] for edge in nodes[RELU]["incomingEdges"]] == [LINEAR]


def test_an_edge_leaves_the_result_that_it_is(tmp_path: Path) -> None:
    records = {
        "Torch.chunk.0.forward": {"input_args": [tensor()], "output": [[tensor(1.0), tensor(2.0)]]},
        RELU: forward(tensor(5.0), tensor(2.0, source="Torch.chunk.0.forward")),
    }
    nodes = _nodes(_export(_write(tmp_path, records), tmp_path / "out"))
    assert nodes[RELU]["incomingEdges"] == [
        {"sourceNodeId": "Torch.chunk.0.forward", "sourceNodeOutputId": "1", "targetNodeInputId": "1"}
    ]


def test_a_module_whose_calls_were_not_recorded_is_a_node(tmp_path: Path) -> None:
    records = {
        "Module.block.fc.Linear.forward.0": forward(tensor()),
        "Module.block.Block.forward.0": forward(tensor()),
    }
    parents = {"Module.block.fc.Linear.forward.0": "Module.block.Block.forward.0"}
    nodes = _nodes(_export(_write(tmp_path, records, parents), tmp_path / "out"))
    assert [(node["label"], node["namespace"]) for node in nodes.values()] == [("fc (Linear)", "block")]


def test_a_node_tells_its_arguments_its_shapes_and_its_statistics(tmp_path: Path) -> None:
    node = _nodes(_export(_write(tmp_path, _records(), PARENTS), tmp_path / "out"))[RELU]
    assert {"key": "input.1", "value": "0.5"} in node["attrs"]
    (output,) = node["outputsMetadata"]
    assert output["id"] == "0"
    told = {one["key"]: one["value"] for one in output["attrs"]}
    assert (told["tensor_name"], told["tensor_shape"]) == (f"{RELU}.output.0", "float32[2,3]")
    assert (told["norm"], told["nan_count"]) == ("nan", "2")
    assert all(isinstance(one["value"], str) for one in output["attrs"])


def test_node_data_are_norms_and_counts_of_nan_and_inf(tmp_path: Path) -> None:
    content = _export(_write(tmp_path, _records(), PARENTS), tmp_path / "out")
    norm = content["norm.json"]["step0/rank"]
    assert norm["results"] == {LINEAR: {"value": 3.0}, "Torch.relu.0.backward": {"value": 1.0}}
    assert [item["stop"] for item in norm["gradient"]] == [0, 1]
    assert content["nonfinite.json"]["step0/rank"]["results"] == {RELU: {"value": 3.0}}
    assert "error.json" not in content


def _write_comparison(file: Path, **content: Any) -> Path:
    rows = [
        {"step": 0, "rank": "rank", "reference_name": f"{LINEAR}.output.0", "candidate_name": "x", "error": 1e-3},
        {"step": 0, "rank": "rank", "reference_name": f"{LINEAR}.input.0", "candidate_name": "y", "error": 9.0},
        {"step": 0, "rank": "rank", "reference_name": f"{RELU}.output.0", "candidate_name": "z", "error": "NaN"},
        {"step": 1, "rank": "rank", "reference_name": f"{LINEAR}.output.0", "candidate_name": "x", "error": 5.0},
    ]
    ranks = [{"step": 0, "reference_name": "step0/rank", "candidate_name": "step0/rank0"}]
    file.write_text(json.dumps({"ranks": ranks, "rows": rows, **content}))
    return file


def test_the_errors_of_a_comparison_are_node_data(tmp_path: Path) -> None:
    path = _write(tmp_path, _records(), PARENTS)
    file = _write_comparison(tmp_path / "compare.json", reference=str(path), candidate="/elsewhere/bad")
    data = _export(path, tmp_path / "out", errors=read_errors(file, path))["error.json"]["step0/rank"]
    assert data["results"] == {LINEAR: {"value": 1e-3}}  # NaN is in nonfinite.json
    values = [item["value"] for item in data["thresholds"]]
    assert values == sorted(values)


def test_a_dump_that_was_moved_is_known_by_its_name(tmp_path: Path) -> None:
    file = _write_comparison(tmp_path / "compare.json", reference="/elsewhere/dump", candidate="/elsewhere/bad")
    path = _write(tmp_path, _records())
    assert read_errors(file, path).find("step0/rank", open_calls(path))[LINEAR] == 1e-3


def open_calls(path: Path) -> list[Any]:
    from tensorprobe.run.step import read_run

    return read_run(next(iter(open_dump(path).ranks()))).calls


def test_two_runs_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    file = _write_comparison(tmp_path / "compare.json", reference="/x/dump", candidate="/y/dump")
    with pytest.raises(UsageError, match="is neither"):
        read_errors(file, tmp_path / "dump")


def test_a_comparison_of_other_runs_is_refused(tmp_path: Path) -> None:
    file = _write_comparison(tmp_path / "compare.json", reference="/x/good", candidate="/x/bad")
    with pytest.raises(UsageError) as caught:
        read_errors(file, tmp_path / "dump")
    assert str(caught.value) == (
        f"--compare {file} compares /x/good with /x/bad, and {tmp_path / 'dump'} is neither. Export one of the two."
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"rows": [1]}', "[" * 100_000])
def test_what_is_no_comparison_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "compare.json"
    file.write_text(content)
    with pytest.raises(DumpError, match=r"is no JSON|is not a compare.json"):
        read_errors(file, tmp_path / "dump")


def test_a_comparison_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be read"):
        read_errors(tmp_path / "compare.json", tmp_path)


def test_a_hostile_module_name_makes_no_layers_of_its_own(tmp_path: Path) -> None:
    path = _write(tmp_path, {LINEAR: forward(module_path="a/b.<script>")})
    assert _nodes(_export(path, tmp_path / "out"))[LINEAR]["namespace"] == "a∕b/<script>"
