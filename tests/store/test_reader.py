"""Reading a dump: whole, cut, made by msprobe, or made to harm."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import PlainSlot, TensorSlot
from tests.report.dump_files import (
    HEADER,
    RUN,
    forward,
    model_records,
    tensor,
    write_killed_rank,
    write_lines,
    write_rank,
)


def only_rank(path: Path) -> RankDump:
    ranks = list(open_dump(path).ranks())
    assert len(ranks) == 1
    return ranks[0]


def test_steps_and_ranks_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (10, 2, 0):
        for rank in ("rank10", "rank2"):
            write_rank(tmp_path / f"step{step}" / rank, {"Torch.add.0.forward": forward()})
    dump = open_dump(tmp_path)
    assert [step.number for step in dump.steps] == [0, 2, 10]
    assert [rank.name for rank in dump.steps[1].ranks] == ["step2/rank2", "step2/rank10"]


@pytest.mark.parametrize("inner", ["", "step3", "step3/rank", "step3/rank/dump.json"])
def test_every_level_of_the_folder_can_be_opened(tmp_path: Path, inner: str) -> None:
    write_rank(tmp_path / "step3" / "rank", {"Torch.add.0.forward": forward()})
    rank = only_rank(tmp_path / inner)
    assert (rank.step, rank.rank, rank.record_count) == (3, None, 1)
    assert rank.is_complete


def test_the_folder_name_may_hold_any_letters(tmp_path: Path) -> None:
    write_rank(tmp_path / "läuft + 运行" / "step0" / "rank0", {"Torch.add.0.forward": forward()})
    assert only_rank(tmp_path / "läuft + 运行").rank == 0


def test_records_have_their_slots(tmp_path: Path) -> None:
    fields = {
        "input_args": [tensor(), [{"type": "int", "value": 1}, tensor(2.0)], None],
        "input_kwargs": {"other": tensor(3.0), "how": {"type": "slice", "value": [0, None, 2]}},
        "output": [tensor(float("nan"), nan_count=6, source="Torch.add.0.forward")],
        "module_path": "layers.0",
        "failed": "RuntimeError: no",
        "caller": "optimizer",
        "recomputed": True,
    }
    rank = only_rank(write_rank(tmp_path, {"Torch.add.0.forward": fields}))
    record = rank.record("Torch.add.0.forward")
    slots = {slot.slot: slot for slot in record.slots()}
    assert list(slots) == ["input.0", "input.1.0", "input.1.1", "input.2", "kwargs.other", "kwargs.how", "output.0"]
    assert slots["input.1.0"] == PlainSlot("input.1.0", "int", 1, is_input=True)
    assert slots["kwargs.how"] == PlainSlot("kwargs.how", "slice", [0, None, 2], is_input=True)
    output = slots["output.0"]
    assert isinstance(output, TensorSlot)
    assert (output.shape, output.nan_count, output.has_nan, output.has_inf) == ((2, 3), 6, True, False)
    assert math.isnan(output.max or 0)
    assert record.fields == fields | {"output": record.fields["output"]}, "NaN is not equal to itself"


def test_parameter_gradients_are_named_after_their_parameters(tmp_path: Path) -> None:
    rank = only_rank(
        write_rank(tmp_path, {"Module.fc.Linear.parameters_grad": {"weight": [tensor()], "bias": [tensor()]}})
    )
    assert [slot.slot for slot in next(rank.records()).slots()] == ["weight", "bias"]


def test_the_gradients_of_keyword_arguments_are_results(tmp_path: Path) -> None:
    fields = {"input": [tensor()], "output": [tensor()], "output_kwargs": {"weight": tensor()}}
    rank = only_rank(write_rank(tmp_path, {"Functional.layer_norm.0.backward": fields}))
    slots = next(rank.records()).slots()
    assert [(slot.slot, slot.is_input) for slot in slots] == [
        ("input.0", True),
        ("output.0", False),
        ("kwargs.weight", False),
    ]


def test_of_a_key_that_occurs_twice_the_last_one_counts(tmp_path: Path) -> None:
    name = "Module.fc.Linear.parameters_grad"
    entries = [(name, {"weight": [tensor(1.0)]}), ("Torch.add.0.forward", forward()), (name, {"weight": [tensor(2.0)]})]
    rank = only_rank(write_rank(tmp_path, entries))
    assert [record.name for record in rank.records()] == ["Torch.add.0.forward", name]
    assert rank.record(name).fields["weight"][0]["Max"] == 2.0


def test_an_unknown_record_is_a_key_error(tmp_path: Path) -> None:
    rank = only_rank(write_rank(tmp_path, {}))
    with pytest.raises(KeyError):
        rank.record("Torch.add.0.forward")


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    record = forward(*[tensor() for _ in range(20)])
    write_rank(tmp_path, {f"Torch.add.{index}.forward": record for index in range(2_000)})
    rank = only_rank(tmp_path)
    tracemalloc.start()
    assert sum(1 for _ in rank.records()) == 2_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < (tmp_path / "dump.json").stat().st_size / 5


def test_saved_values_are_read(tmp_path: Path) -> None:
    saved = {"x2.0.debug": tensor(), "nest.0.debug": {"a": {"b": [tensor(), {"type": "str", "value": "t"}]}, "k": None}}
    write_lines(tmp_path / "debug.json", HEADER, {**saved, "x2_grad.0.debug": None}, "}}")
    rank = only_rank(tmp_path)
    assert [[slot.slot for slot in value.slots()] for value in rank.saved_values()] == [
        [""],
        ["a.b.0", "a.b.1", "k"],
        [""],
    ]
    assert rank.header["level"] == "mix"


def test_what_msprobe_writes_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "proc4711"
    folder.mkdir(parents=True)
    leaf = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], "Max": float("nan"), "Min": 0.0}
    data = {
        "Functional.conv2d.0.forward": {"input_args": [leaf], "input_kwargs": {}, "output": [leaf]},
        "Module.conv.Conv2d.parameters_grad.0": {"weight": [leaf]},
    }
    content = {"task": "statistics", "level": "mix", "framework": "mindspore", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(content, indent=1))
    (folder / "construct.json").write_text(json.dumps({"Functional.conv2d.0.forward": None}, indent=1))
    rank = only_rank(tmp_path)
    assert [record.name for record in rank.records()] == list(data)
    assert rank.header["framework"] == "mindspore"
    assert "data" not in rank.header, "the records are no part of it"
    assert [slot.slot for slot in rank.record("Module.conv.Conv2d.parameters_grad.0").slots()] == ["weight"]
    output = list(rank.record("Functional.conv2d.0.forward").slots())[1]
    assert isinstance(output, TensorSlot)
    assert (output.has_nan, output.nan_count) == (True, None)
    assert rank.rank is None
    assert rank.is_complete
    assert not rank.problems
    assert not rank.run


def test_after_a_kill_every_whole_record_is_read(tmp_path: Path) -> None:
    rank = only_rank(write_killed_rank(tmp_path, model_records()))
    assert [record.name for record in rank.records()] == list(model_records())
    assert not rank.is_complete
    assert rank.problems == ("dump.json.part: its last line was cut off and is left out",)
    assert set(rank.parents) == set(model_records())
    assert rank.stack("Torch.log.0.forward") == ("File /x/model.py, line 18, in forward, \n x = self.fc(x)",)


def test_a_spoilt_line_inside_a_part_is_named_and_left_out(tmp_path: Path) -> None:
    path = write_killed_rank(tmp_path, {"Torch.add.0.forward": forward()}, cut="\0\0\0,\n") / "dump.json.part"
    with path.open("a") as file:
        file.write('"Torch.add.1.forward": {"input_args": []}')
    rank = only_rank(tmp_path)
    assert [record.name for record in rank.records()] == ["Torch.add.0.forward", "Torch.add.1.forward"]
    assert rank.problems[0] == "dump.json.part: line 3 cannot be read and is left out"


def test_a_part_that_only_lacks_its_rename_is_complete(tmp_path: Path) -> None:
    write_lines(tmp_path / "dump.json.part", HEADER, {"Torch.add.0.forward": forward()}, "}}")
    assert only_rank(tmp_path).is_complete


def test_a_run_that_says_it_did_not_end_is_not_complete(tmp_path: Path) -> None:
    assert not only_rank(write_rank(tmp_path, {}, run={**RUN, "complete": False})).is_complete


def test_the_stack_journal_wins_over_an_older_stack_file(tmp_path: Path) -> None:
    write_rank(tmp_path, {}, stacks={"0": [["a.0.forward", "b.0.forward"], ["old"]]})
    (tmp_path / "stack.json.part").write_text('["stack", 0, ["new"]]\n["call", 0, "a.0.forward"]\n')
    rank = only_rank(tmp_path)
    assert (rank.stack("a.0.forward"), rank.stack("b.0.forward"), rank.stack("c.0.forward")) == (("new",), ("old",), ())
    assert rank.is_complete


@pytest.mark.parametrize("name", ["stack.json", "construct.json", "run.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"a": ' + "[" * 100_000, "\xff"])
def test_a_spoilt_side_file_is_a_problem_and_no_error(tmp_path: Path, name: str, content: str) -> None:
    write_rank(tmp_path, {"Torch.add.0.forward": forward()})
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    rank = only_rank(tmp_path)
    assert len(list(rank.records())) == 1
    assert any(name in problem for problem in rank.problems)


def test_a_missing_side_file_is_no_problem(tmp_path: Path) -> None:
    write_lines(tmp_path / "dump.json", HEADER, {"Torch.add.0.forward": forward()}, "}}")
    rank = only_rank(tmp_path)
    assert (rank.problems, dict(rank.parents), dict(rank.run)) == ((), {}, {})


def test_an_empty_rank_folder_beside_others_is_noted(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank0", {})
    (tmp_path / "step0" / "rank1").mkdir()
    problems = [rank.problems for rank in open_dump(tmp_path).ranks()]
    assert problems == [(), ("neither dump.json nor debug.json: nothing was recorded here",)]


def test_selecting_what_is_not_there_says_what_there_is(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank", {})
    write_rank(tmp_path / "step2" / "rank", {})
    dump = open_dump(tmp_path)
    assert [rank.name for rank in dump.select(step=2, rank=0).ranks()] == ["step2/rank"]
    with pytest.raises(DumpError, match=r"has no step 1 rank 3\. It has: step0/rank, step2/rank\."):
        dump.select(step=1, rank=3)


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"does not exist\. Give the dump_path of a run"):
        open_dump(tmp_path / "nothing")


def test_a_folder_without_a_dump_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(DumpError, match=r"holds no dump: .* but weights\.bin"):
        open_dump(tmp_path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(DumpError, match=r"is not a dump\. Give a dump\.json"):
        open_dump(path)


def test_a_complete_file_that_was_cut_is_an_error_that_says_how_to_read_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "dump.json", HEADER, model_records(), "}}")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DumpError, match=r"is not whole .* rename it to dump\.json\.part"):
        list(only_rank(tmp_path).records())


def test_one_spoilt_record_in_a_complete_file_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "dump.json", HEADER, {"Torch.add.0.forward": "MARK"}, "}}")
    text = (tmp_path / "dump.json").read_text().replace('"MARK"', '{"input_args": [}')
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(DumpError, match=r"the entry 'Torch\.add\.0\.forward' cannot be read"):
        list(only_rank(tmp_path).records())


@pytest.mark.parametrize(
    ("name", "header"), [("dump.json", HEADER), ("dump.json.part", HEADER), ("dump.json", '{\n "data": {')]
)
def test_nesting_without_end_is_an_error_and_no_crash(tmp_path: Path, name: str, header: str) -> None:
    deep = '{"input_args": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / name).write_text(f'{header}\n"Torch.add.0.forward": {deep}\n}}}}\n')
    with pytest.raises(DumpError, match="nested too deeply"):
        list(only_rank(tmp_path).records())


@pytest.mark.parametrize(
    "content", ["[]", "3", '{"data": {"a": 3}}', '{"a": 3}', "", "\0\0", '{"data": {"a": ' + "9" * 5000 + "}}"]
)
def test_what_is_no_dump_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "dump.json").write_text(content)
    with pytest.raises(DumpError, match=r"dump\.json"):
        list(only_rank(tmp_path).records())


def test_leaves_of_a_wrong_type_are_taken_as_absent(tmp_path: Path) -> None:
    leaf = {
        "type": "torch.Tensor",
        "dtype": 3,
        "shape": "x",
        "Max": "1",
        "Min": [],
        "nan_count": "many",
        "data_name": 7,
    }
    rank = only_rank(write_rank(tmp_path, {"Torch.add.0.forward": {"output": [leaf]}}))
    slot = next(next(rank.records()).slots())
    assert isinstance(slot, TensorSlot)
    assert (slot.dtype, slot.shape, slot.max, slot.min, slot.data_name, slot.nan_count) == (
        None,
        None,
        None,
        None,
        None,
        0,
    )


@pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "a/b.pt", "..", ".", "", "a\0b", "..\\secret.pt"])
def test_a_tensor_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    rank = only_rank(write_rank(tmp_path, {}))
    with pytest.raises(DumpError, match="is not a plain file name"):
        rank.tensor_path(name)


def test_a_tensor_file_is_found(tmp_path: Path) -> None:
    rank = only_rank(write_rank(tmp_path, {}))
    assert (
        rank.tensor_path("Torch.add.0.forward.output.0.pt")
        == tmp_path / "dump_tensor_data" / "Torch.add.0.forward.output.0.pt"
    )


def test_links_that_leave_the_dump_are_refused(tmp_path: Path) -> None:
    outside = write_rank(tmp_path / "outside" / "step0" / "rank", {"Torch.add.0.forward": forward()})
    inside = write_rank(tmp_path / "dump" / "step0" / "rank", {})
    (inside / "dump_tensor_data").mkdir()
    (inside / "dump_tensor_data" / "a.pt").symlink_to(outside / "dump.json")
    (inside / "dump_tensor_data" / "b.pt").symlink_to("a.pt")
    rank = only_rank(tmp_path / "dump")
    for name in ("a.pt", "b.pt"):
        with pytest.raises(DumpError, match="leads out of the dump"):
            rank.tensor_path(name)
    (inside / "stack.json").unlink()
    (inside / "stack.json").symlink_to(outside / "stack.json")
    assert "leads out of the dump" in only_rank(tmp_path / "dump").problems[0]
    (inside / "dump.json").unlink()
    (inside / "dump.json").symlink_to(outside / "dump.json")
    with pytest.raises(DumpError, match="leads out of the dump"):
        open_dump(tmp_path / "dump")


def test_a_linked_folder_of_tensors_that_leaves_the_dump_is_refused(tmp_path: Path) -> None:
    inside = write_rank(tmp_path / "dump" / "step0" / "rank", {})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.pt").write_bytes(b"secret")
    (inside / "dump_tensor_data").symlink_to(tmp_path / "outside")
    with pytest.raises(DumpError, match="leads out of the dump"):
        only_rank(tmp_path / "dump").tensor_path("a.pt")


def test_a_linked_step_that_leaves_the_dump_is_refused(tmp_path: Path) -> None:
    write_rank(tmp_path / "outside" / "step0" / "rank", {})
    write_rank(tmp_path / "dump" / "step0" / "rank", {})
    (tmp_path / "dump" / "step1").symlink_to(tmp_path / "outside" / "step0")
    with pytest.raises(DumpError, match="leads out of the dump"):
        open_dump(tmp_path / "dump")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    write_rank(tmp_path, {})
    (tmp_path / "dump.json").unlink()
    os.mkfifo(tmp_path / "dump.json")
    with pytest.raises(DumpError, match="holds no dump"):
        open_dump(tmp_path)
