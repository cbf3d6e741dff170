"""A step is read once, into calls that show, replay and compare look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import RankDump, open_dump
from tests.report.dump_files import backward, forward, tensor, write_lines, write_rank

LINEAR, LINEAR_BACKWARD = "Functional.linear.0.forward", "Functional.linear.0.backward"
MODULE = "Module.fc.Linear.forward.0"
GRADIENTS = "Module.fc.Linear.parameters_grad"
RECORDS: dict[str, Any] = {
    LINEAR: forward(tensor(), module_path="fc", generator="abc", note="undefined memory"),
    MODULE: forward(tensor(), module_path="fc"),
    "Torch.matmul.0.forward": forward(tensor(), failed="ValueError: no", caller="optimizer"),
    "Functional.linear.0.recompute": forward(tensor(), recomputed=True, differs_from_forward=["output.0"]),
    LINEAR_BACKWARD: backward(tensor()),
    GRADIENTS: {"weight": [tensor()]},
}
PARENTS = {LINEAR: MODULE, LINEAR_BACKWARD: "Module.fc.Linear.backward.0"}


def open_rank(folder: Path) -> RankDump:
    (rank,) = open_dump(folder).ranks()
    return rank


def read(folder: Path, records: dict[str, Any] | list[tuple[str, Any]] = RECORDS, **more: Any) -> Run:
    write_rank(folder / "step0" / "rank", records, **more)
    return read_run(open_rank(folder))


def test_calls_stand_in_the_order_in_which_they_ended_and_what_was_saved_follows_them(tmp_path: Path) -> None:
    saved = {"x.0.debug": tensor()}
    write_lines(tmp_path / "step0" / "rank" / "debug.json", '{"data": {', saved, "}}")
    run = read(tmp_path)
    assert [call.name for call in run.calls] == [*RECORDS, *saved]
    assert [call.position for call in run.calls] == list(range(len(RECORDS) + 1))
    assert run.by_name["x.0.debug"].kind == "saved" and run.by_name["x.0.debug"].results[0].slot == ""


def test_a_call_says_what_its_record_says(tmp_path: Path) -> None:
    run = read(tmp_path, parents=PARENTS)
    linear = run.by_name[LINEAR]
    assert (linear.parent, linear.module_path, linear.note) == (MODULE, "fc", "undefined memory")
    assert (linear.generator, linear.framework, run.framework) == ("abc", "pytorch", "pytorch")
    assert [slot.slot for slot in linear.slots] == ["input.0", "output.0"]
    matmul = run.by_name["Torch.matmul.0.forward"]
    assert (matmul.failed, matmul.caller) == ("ValueError: no", "optimizer")
    repeated = run.by_name["Functional.linear.0.recompute"]
    assert repeated.is_recomputed and repeated.differs_from_forward == ("output.0",)


def test_a_field_of_an_unexpected_type_is_taken_as_absent(tmp_path: Path) -> None:
    fields = forward(
        tensor(), failed=3, module_path=[], caller={}, note=1.5, recomputed="yes", differs_from_forward="x"
    )
    (call,) = read(tmp_path, {LINEAR: fields}).calls
    assert (call.failed, call.module_path, call.caller, call.note, call.generator) == (None,) * 5
    assert not call.is_recomputed and call.differs_from_forward == ()


LAYER = "NN_LayerNorm_0_forward"
INSIDE = {
    "name": "Functional.layer_norm",
    "input_args": [tensor()],
    "input_kwargs": {"eps": {"type": "float", "value": 0.1}},
}


def test_a_layer_has_the_calls_that_it_is_made_of(tmp_path: Path) -> None:
    (layer,) = read(tmp_path, {LAYER: forward(tensor(), calls=[INSIDE])}).calls
    (part,) = layer.parts
    assert (part.prefix, part.op, part.framework) == ("Functional", "layer_norm", layer.framework)
    assert [slot.slot for slot in part.slots] == ["input.0", "kwargs.eps"]
    assert "kwargs.eps" not in [slot.slot for slot in layer.slots]


def test_what_is_no_call_inside_a_layer_is_left_out_and_no_other_call_has_parts(tmp_path: Path) -> None:
    spoilt = [3, None, {}, {"name": 5}, {"name": "relu"}, INSIDE]
    records = {LAYER: forward(tensor(), calls=spoilt), LINEAR: forward(tensor(), calls=[INSIDE])}
    layer, linear = read(tmp_path, records).calls
    assert [part.op for part in layer.parts] == ["layer_norm"] and linear.parts == ()


def test_a_record_that_was_written_twice_counts_where_it_was_written_last(tmp_path: Path) -> None:
    run = read(tmp_path, [*RECORDS.items(), (LINEAR, forward(tensor(2.0)))])
    assert run.calls[-1].name == LINEAR and run.by_name[LINEAR].position == len(RECORDS)
    assert run.by_name[MODULE].position == 1


def test_the_module_of_a_call_is_known_by_the_record_around_it(tmp_path: Path) -> None:
    """Also by that of a module call which was not recorded."""
    run = read(tmp_path, parents=PARENTS)
    paths = {call.name: run.context_path(call) for call in run.calls}
    assert paths[LINEAR] == paths[LINEAR_BACKWARD] == paths[GRADIENTS] == "fc"
    assert paths["Torch.matmul.0.forward"] is None


def test_every_record_is_told_of_once(tmp_path: Path) -> None:
    told: list[None] = []
    read(tmp_path)
    read_run(open_rank(tmp_path), lambda: told.append(None))
    assert len(told) == len(RECORDS)
