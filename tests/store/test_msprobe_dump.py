"""Dumps that msprobe 26.2.0 itself made are read: `msprobe_dump/make.py` makes them again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tensorprobe.model.name import ApiName, ModuleName, ParametersGradName, parse_name
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot
from tests.cli.command import run_here

FOLDER = Path(__file__).with_name("msprobe_dump")
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and "-" in path.name)


def only_rank(case: str) -> RankDump:
    (rank,) = open_dump(FOLDER / case).ranks()
    return rank


def slots(rank: RankDump, name: str) -> dict[str, Slot]:
    return {slot.slot: slot for slot in rank.record(name).slots()}


def tensor(rank: RankDump, name: str, slot: str) -> TensorSlot:
    found = slots(rank, name)[slot]
    assert isinstance(found, TensorSlot)
    return found


def test_every_level_and_every_task_is_here() -> None:
    levels, tasks = zip(*(case.split("-") for case in CASES), strict=True)
    assert set(levels) == {"L0", "L1", "mix", "debug"}
    assert set(tasks) == {"statistics", "tensor", "md5", "structure"}


@pytest.mark.parametrize("case", CASES)
def test_the_dump_is_complete_and_its_header_is_read(case: str) -> None:
    level, task = case.split("-")
    for rank in open_dump(FOLDER / case).ranks():
        assert rank.is_complete and not rank.problems and not rank.run
        assert rank.header["task"] == {"md5": "statistics"}.get(task, task)
        assert (rank.header["level"], rank.header["framework"]) == (level, "pytorch")


@pytest.mark.parametrize("case", CASES)
def test_every_name_is_in_the_grammar_and_every_slot_has_a_place(case: str) -> None:
    for rank in open_dump(FOLDER / case).ranks():
        for record in rank.records():
            parsed = parse_name(record.name)
            assert isinstance(parsed, ApiName | ModuleName | ParametersGradName)
            assert isinstance(parsed, ParametersGradName) == record.is_parameters_grad
            places = [slot.slot for slot in record.slots()]
            assert places and len(places) == len(set(places))


@pytest.mark.parametrize("case", CASES)
def test_what_msprobe_does_not_write_is_none(case: str) -> None:
    for rank in open_dump(FOLDER / case).ranks():
        for record in rank.records():
            assert not record.fields.keys() & {"module_path", "failed", "caller", "note", "recomputed"}
            for slot in record.slots():
                if isinstance(slot, TensorSlot):
                    ours = (slot.source, slot.reason, slot.note, slot.nan_count, slot.inf_count)
                    assert ours == (None,) * 5
                    assert (slot.has_nan, slot.has_inf) == (False, False)


def test_the_records_of_modules_are_read_with_their_arguments_results_and_parameters() -> None:
    rank = only_rank("L0-tensor")
    assert [record.name for record in rank.records()] == [
        "Module.shared.Linear.forward.0",
        "Module.relu.ReLU.forward.0",
        "Module.shared.Linear.forward.1",
        "Module.dropout.Dropout.forward.0",
        "Module.head.Head.forward.0",
        "Module.head.Head.parameters_grad.0",
        "Module.head.Head.backward.0",
        "Module.dropout.Dropout.backward.0",
        "Module.shared.Linear.backward.1",
        "Module.shared.Linear.parameters_grad.0",
    ]
    head = slots(rank, "Module.head.Head.forward.0")
    assert list(head) == [
        "input.0",
        "kwargs.scale",
        "kwargs.mask",
        "output.0.logits",
        "output.0.pair.0",
        "output.0.pair.1",
        "parameters.weight",
    ]
    assert head["kwargs.scale"] == PlainSlot("kwargs.scale", "float", 2.0, is_input=True)
    assert head["output.0.pair.1"].type == "NoneType"
    assert [slot for slot, found in head.items() if found.is_input] == [
        "input.0",
        "kwargs.scale",
        "kwargs.mask",
        "parameters.weight",
    ]
    assert list(slots(rank, "Module.shared.Linear.parameters_grad.0")) == ["bias", "weight"]


def test_the_numbers_of_a_tensor_are_read() -> None:
    rank = only_rank("mix-md5")
    given = tensor(rank, "Functional.linear.0.forward", "input.0")
    assert (given.type, given.dtype, given.shape) == ("torch.Tensor", "torch.float32", (2, 4))
    assert (given.max, given.min, given.mean) == (0.875, 0.0, 0.4375)
    assert given.norm == pytest.approx(1.47902)
    assert (given.requires_grad, given.checksum, given.data_name) == (False, "fbb32bdd", None)
    result = tensor(rank, "Functional.relu.0.forward", "output.0")
    assert (result.min, result.requires_grad, result.is_input) == (0.0, True, False)
    mask = tensor(rank, "Tensor.masked_fill.0.forward", "input.1")
    assert (mask.dtype, mask.max, mask.min) == ("torch.bool", True, False)


def test_in_a_backward_record_what_comes_in_is_an_input_and_a_missing_gradient_is_none() -> None:
    rank = only_rank("mix-md5")
    found = slots(rank, "Functional.linear.0.backward")
    assert [(slot, found[slot].is_input) for slot in found] == [
        ("input.0", True),
        ("output.0", False),
        ("output.1", False),
        ("output.2", False),
    ]
    assert found["output.1"].type == "NoneType"


def test_stacks_and_nesting_are_read() -> None:
    rank = only_rank("mix-md5")
    name = "Functional.gelu.0.forward"
    assert re.fullmatch(
        r"File program\.py, line \d+, in forward, \n y = F\.gelu\(y, approximate=self\.approximate\)",
        rank.stack(name)[0],
    )
    assert rank.stack(name)[-1].endswith(", in <module>, \n main()")
    assert rank.parents[name] == "Module.head.Head.forward.0"
    assert rank.parents["Module.head.Head.forward.0"] is None
    forwards = [record.name for record in rank.records() if ".forward" in record.name]
    assert all(rank.stack(forward) for forward in forwards) and set(forwards) <= set(rank.parents)


def test_the_ranks_of_a_distributed_run_have_their_numbers_and_collectives() -> None:
    ranks = list(open_dump(FOLDER / "L1-statistics").ranks())
    assert [(rank.name, rank.rank) for rank in ranks] == [("step0/rank0", 0), ("step0/rank1", 1)]
    for rank in ranks:
        assert dict(rank.parents) == {}
        given = tensor(rank, "Distributed.all_reduce.0.forward", "input.0")
        reduced = tensor(rank, "Distributed.all_reduce.0.forward", "output.0")
        assert given.shape == () and given.max is not None and reduced.max == pytest.approx(2 * given.max)


def test_outside_a_distributed_run_the_folder_of_a_process_has_no_rank() -> None:
    rank = only_rank("mix-md5")
    assert (rank.name, rank.step, rank.rank) == ("step0/proc4711", 0, None)


def test_a_dump_of_the_structure_has_nesting_and_stacks_and_no_records() -> None:
    rank = only_rank("mix-structure")
    assert rank.record_count == 0 and not list(rank.records())
    assert rank.parents["Functional.gelu.0.forward"] == "Module.head.Head.forward.0"
    assert "F.gelu" in rank.stack("Functional.gelu.0.forward")[0]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_single_points_are_read(task: str) -> None:
    rank = only_rank(f"debug-{task}")
    saved = {value.name: {slot.slot: slot for slot in value.slots()} for value in rank.saved_values()}
    assert list(saved) == ["nested.0.debug", "nested_grad.0.debug", "y.0.debug", "y_grad.0.debug"]
    assert list(saved["nested.0.debug"]) == ["logits.0", "logits.1", "word"]
    assert saved["nested.0.debug"]["word"] == PlainSlot("word", "str", "text")
    value, gradient = saved["nested.0.debug"]["logits.0"], saved["nested_grad.0.debug"]["logits.0"]
    assert isinstance(value, TensorSlot) and isinstance(gradient, TensorSlot)
    assert value.data_name == ("nested.0.debug.logits.0.pt" if task == "tensor" else None)
    assert gradient.shape == (2, 3) and gradient.mean == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_show_prints_it(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "show", FOLDER / case)
    assert (done.returncode, done.stderr) == (0, "")
    for rank in open_dump(FOLDER / case).ranks():
        assert rank.name in done.stdout
        for name in [saved.name for saved in rank.saved_values()]:
            assert name in done.stdout
        assert all(name in done.stdout for name in api_calls(rank))


def test_show_gives_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "show", "--json", FOLDER / "mix-md5")
    (rank,) = json.loads(done.stdout)["ranks"]
    assert (done.returncode, rank["error"], rank["record_count"]) == (0, None, only_rank("mix-md5").record_count)


def api_calls(rank: RankDump) -> list[str]:
    """`Torch.sin.0`, as the table names the calls of APIs."""
    parsed = (parse_name(record.name) for record in rank.records())
    return [f"{name.prefix}.{name.name}.{name.index}" for name in parsed if isinstance(name, ApiName)]


def test_nothing_in_these_files_tells_of_the_machine_they_were_made_on() -> None:
    texts = [path.read_text() for path in FOLDER.rglob("*.json")]
    assert texts and not any(re.search(r'"(File )?(/|[A-Za-z]:)', text) for text in texts)
