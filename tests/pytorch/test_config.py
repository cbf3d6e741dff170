"""What each key of config.json does to a dump."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.pytorch import PrecisionDebugger
from tests.capture.torch.dump import DumpOnDisk
from tests.pytorch.program import DUMP, dump_of, files_in, is_forward, make_debugger, record_step

NUMBERS = {"Max", "Min", "Mean", "Norm"}
CHECKSUM_SIZES = {"md5": 8, "hash": 16}


def leaves(tree: Any) -> list[dict[str, Any]]:
    """All tensors of a record."""
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return [tree] if tree.get("type") == "torch.Tensor" else leaves(list(tree.values()))
    return []


def all_leaves(dump: DumpOnDisk) -> list[dict[str, Any]]:
    return [leaf for fields in dump.records.values() for leaf in leaves(fields)]


def tensor_files() -> list[str]:
    folder = DUMP / "step0" / "rank" / "dump_tensor_data"
    return files_in(folder) if folder.exists() else []


# -- level -------------------------------------------------------------------------------------------------------------


def test_level_l0_records_modules() -> None:
    assert {name.split(".")[0] for name in record_step(level="L0").records} == {"Module"}


def test_level_l1_records_apis_and_has_module_paths_instead_of_a_nesting() -> None:
    dump = record_step(level="L1")
    assert {name.split(".")[0] for name in dump.records} == {"Functional", "Tensor"}
    assert dump.parents == {}
    assert dump.records["Functional.linear.0.forward"]["module_path"] == "fc"
    assert dump.records["Functional.linear.0.backward"]["module_path"] == "fc"


def test_level_mix_records_both_nested() -> None:
    dump = record_step(level="mix")
    assert {name.split(".")[0] for name in dump.records} == {"Functional", "Tensor", "Module"}
    assert dump.parents["Functional.linear.0.forward"] == "Module.fc.Linear.forward.0"
    assert dump.parents["Module.fc.Linear.forward.0"] == "Module.Net.forward.0"
    assert dump.parents["Module.Net.forward.0"] is None


# -- task --------------------------------------------------------------------------------------------------------------


def test_task_statistics_keeps_four_numbers_and_no_files() -> None:
    dump = record_step(level="mix", task="statistics")
    assert all(leaf.keys() >= NUMBERS and "data_name" not in leaf for leaf in all_leaves(dump))
    assert tensor_files() == [] and dump.read("dump.json")["dump_data_dir"] is None


def test_task_tensor_keeps_a_file_for_every_tensor() -> None:
    dump = record_step(level="mix", task="tensor")
    names = [leaf["data_name"] for leaf in all_leaves(dump)]
    assert sorted(names) == tensor_files() and len(set(names)) == len(names)
    assert dump.read("dump.json")["dump_data_dir"] == str((DUMP / "step0/rank/dump_tensor_data").absolute())
    assert {
        "Module.conv1.Conv2d.forward.0.input.0.pt",
        "Module.conv1.Conv2d.forward.0.parameters.bias.pt",
        "Module.conv1.Conv2d.parameters_grad.weight.pt",
        "Functional.linear.0.backward.output.1.pt",
    } <= set(names)


def test_a_tensor_file_holds_the_value_that_the_statistics_are_of() -> None:
    dump = record_step(level="L1", task="tensor")
    for leaf in all_leaves(dump):
        tensor = dump.tensor(leaf)
        assert list(tensor.shape) == leaf["shape"] and float(tensor.max()) == leaf["Max"]


def test_task_structure_keeps_neither_numbers_nor_files() -> None:
    dump = record_step(level="mix", task="structure")
    assert "Module.fc.Linear.backward.0" in dump.records and tensor_files() == []
    assert all(not (leaf.keys() & (NUMBERS | {"md5", "data_name"})) for leaf in all_leaves(dump))
    assert all({"dtype", "shape"} <= leaf.keys() for leaf in all_leaves(dump))


# -- summary_mode and async_dump ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["follows", "async"])
@pytest.mark.parametrize("mode", CHECKSUM_SIZES)
def test_checksums_stand_beside_the_statistics(mode: str, is_async: bool) -> None:
    dump = record_step(level="mix", summary_mode=mode, async_dump=is_async)
    for leaf in all_leaves(dump):
        assert leaf.keys() >= NUMBERS
        assert len(leaf[mode]) == CHECKSUM_SIZES[mode] and int(leaf[mode], 16) >= 0


def test_md5_is_the_crc_32_of_the_bytes() -> None:
    debugger = make_debugger(level="debug", summary_mode="md5")
    x = torch.arange(6.0).view(2, 3)
    debugger.save(x, "x")
    debugger.step()
    leaf = dump_of().read("debug.json")["data"]["x.0.debug"]
    assert leaf["md5"] == f"{zlib.crc32(x.numpy().tobytes()):08x}"


@pytest.mark.parametrize("is_async", [False, True], ids=["follows", "async"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "hash"])
def test_complex_tensors_have_statistics_and_checksums(mode: str, is_async: bool) -> None:
    debugger = make_debugger(level="L1", summary_mode=mode, async_dump=is_async)
    z = torch.tensor([3 + 4j, 0], requires_grad=True)
    debugger.start()
    (z * 2j).abs().sum().backward()
    debugger.stop()
    debugger.step()
    fields = dump_of().records["Tensor.mul.0.forward"]
    assert fields["input_args"][0]["Max"] == 5.0 and fields["output"][0]["Max"] == 10.0
    assert "Tensor.mul.0.backward" in dump_of().records
    assert mode == "statistics" or len(fields["output"][0][mode]) == CHECKSUM_SIZES[mode]


def test_the_checksum_is_of_the_value_at_the_time_of_the_call() -> None:
    debugger = make_debugger(level="L1", summary_mode="hash", async_dump=True)
    x = torch.zeros(1000)
    debugger.start()
    for _ in range(3):
        torch.clone(x)
        x.add_(1)
        x.sub_(1)
    debugger.stop()
    records = dump_of().records
    assert len({records[f"Torch.clone.{n}.forward"]["input_args"][0]["hash"] for n in range(3)}) == 1
    assert (
        records["Tensor.add_.0.forward"]["input_args"][0]["hash"]
        != records["Tensor.add_.0.forward"]["output"][0]["hash"]
    )


def test_async_dump_stores_the_same_tensors() -> None:
    def contents(**keys: Any) -> dict[str, Any]:
        dump = record_step(level="mix", task="tensor", **keys)
        found = {leaf["data_name"]: dump.tensor(leaf) for leaf in all_leaves(dump)}
        PrecisionDebugger.reset()
        return found

    follows, late = contents(), contents(async_dump=True)
    assert follows.keys() == late.keys()
    assert all(torch.equal(follows[name], late[name]) for name in follows)


# -- scope and list ----------------------------------------------------------------------------------------------------


def test_scope_takes_what_runs_between_two_apis() -> None:
    scope = ["Functional.relu.0.forward", "Functional.linear.0.forward"]
    dump = record_step(level="L1", scope=scope)
    assert list(dump.records) == [scope[0], "Tensor.flatten.0.forward", scope[1]]


def test_scope_takes_what_runs_inside_and_between_two_modules() -> None:
    scope = ["Module.conv1.Conv2d.forward.0", "Module.fc.Linear.forward.0"]
    dump = record_step(level="mix", scope=scope, data_mode=["forward"])
    assert list(dump.records) == [
        "Functional.conv2d.0.forward",
        "Module.conv1.Conv2d.forward.0",
        "Functional.relu.0.forward",
        "Tensor.flatten.0.forward",
        "Functional.linear.0.forward",
        "Module.fc.Linear.forward.0",
    ]


def test_scope_of_one_module_takes_what_runs_inside_it() -> None:
    name = "Module.fc.Linear.forward.0"
    dump = record_step(level="mix", scope=[name, name], data_mode=["forward"])
    assert list(dump.records) == ["Functional.linear.0.forward", name]


def test_scope_may_name_backward_calls() -> None:
    scope = ["Functional.linear.0.backward", "Functional.relu.0.backward"]
    dump = record_step(level="L1", scope=scope)
    assert list(dump.records) == [scope[0], "Tensor.flatten.0.backward", scope[1]]


def test_scope_begins_anew_with_each_step() -> None:
    debugger = make_debugger(level="L1", scope=["Tensor.sin.0.forward", "Tensor.cos.0.forward"])
    for _ in range(2):
        debugger.start()
        x = torch.ones(1)
        x.sin()
        x.cos()
        x.tan()
        debugger.stop()
        debugger.step()
    expected = ["Tensor.sin.0.forward", "Tensor.cos.0.forward"]
    assert list(dump_of(0).records) == list(dump_of(1).records) == expected


def test_list_takes_every_name_that_contains_one_of_its_parts() -> None:
    dump = record_step(level="L1", list=["relu", "linear.0.back"])
    assert set(dump.records) == {
        "Functional.relu.0.forward",
        "Functional.relu.0.backward",
        "Functional.linear.0.backward",
    }


def test_a_module_in_the_list_takes_all_inside_it_at_mix() -> None:
    dump = record_step(level="mix", list=["Module.fc.Linear"])
    assert set(dump.records) == {
        "Functional.linear.0.forward",
        "Module.fc.Linear.forward.0",
        "Functional.linear.0.backward",
        "Module.fc.Linear.backward.0",
        "Module.fc.Linear.parameters_grad",
    }


def test_indexes_count_calls_that_are_filtered_out() -> None:
    debugger = make_debugger(level="L1", list=["sin.2"])
    debugger.start()
    for _ in range(4):
        torch.ones(1).sin()
    debugger.stop()
    assert list(dump_of().records) == ["Tensor.sin.2.forward"]
    coverage = dump_of().read("run.json")["coverage"]
    assert (coverage["seen"], coverage["recorded"], coverage["filtered"]) == (8, 1, 7)


def test_an_empty_list_is_no_filter() -> None:
    everything = record_step(level="mix").records.keys()
    PrecisionDebugger.reset()
    assert record_step(level="mix", scope=[], list=[], data_mode=[], rank=[], step=[]).records.keys() == everything


# -- data_mode and tensor_list -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "is_kept"), [("forward", is_forward), ("backward", lambda name: not is_forward(name))]
)
def test_data_mode_takes_one_direction(mode: str, is_kept: Any) -> None:
    everything = record_step(level="mix").records
    PrecisionDebugger.reset()
    assert set(record_step(level="mix", data_mode=[mode]).records) == {name for name in everything if is_kept(name)}


@pytest.mark.parametrize(
    ("mode", "forward", "backward"),
    [
        ("input", {"input_args", "input_kwargs", "parameters"}, {"input"}),
        ("output", {"output"}, {"output"}),
    ],
)
def test_data_mode_takes_one_side_of_a_call(mode: str, forward: set[str], backward: set[str]) -> None:
    records = record_step(level="mix", data_mode=[mode]).records
    sides = {"input_args", "input_kwargs", "parameters", "buffers", "output", "input", "output_kwargs"}
    assert records["Module.fc.Linear.forward.0"].keys() & sides - {"buffers"} == forward
    assert records["Functional.linear.0.backward"].keys() & sides == backward


def test_data_mode_combines_direction_and_side() -> None:
    records = record_step(level="L1", data_mode=["forward", "output"]).records
    assert all(is_forward(name) and "input_args" not in fields for name, fields in records.items())


def test_tensor_list_stores_the_tensors_of_these_calls_only() -> None:
    dump = record_step(level="mix", tensor_list=["relu.0.forward", "Module.fc"])
    stored = {name for name, fields in dump.records.items() if any("data_name" in leaf for leaf in leaves(fields))}
    assert stored == {
        "Functional.relu.0.forward",
        "Module.fc.Linear.forward.0",
        "Module.fc.Linear.backward.0",
        "Module.fc.Linear.parameters_grad",
    }
    assert all(leaf.keys() >= NUMBERS for leaf in all_leaves(dump))


# -- extra_info and api_yaml -------------------------------------------------------------------------------------------


def test_without_extra_info_there_is_no_stack_json_and_no_construct_json() -> None:
    record_step(level="mix", extra_info=False)
    assert files_in(DUMP / "step0" / "rank") == ["dump.json", "run.json"]


def test_api_yaml_adds_and_removes_apis() -> None:
    Path("apis.yaml").write_text("functional:\n  - relu\ntensor:\n  remove: [square]\n  add: [size]\n")
    debugger = make_debugger(level="L1", api_yaml="apis.yaml")
    debugger.start()
    x = torch.ones(2, 2)
    torch.nn.functional.linear(torch.relu(x), x)
    torch.nn.functional.relu(x).square().sum()
    x.size()
    debugger.stop()
    names = [name.rsplit(".", 2)[0] for name in dump_of().records]
    assert names == ["Torch.ones", "Torch.relu", "Functional.relu", "Tensor.sum", "Tensor.size"]
