"""What each key of config.json does to a dump."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, mint, ops

from tensorprobe.errors import ConfigError, NonFiniteError
from tensorprobe.mindspore import PrecisionDebugger
from tests.capture.mindspore.dump import DumpOnDisk
from tests.mindspore.program import (
    DUMP,
    dump_of,
    files_in,
    gradient_of,
    is_forward,
    make_debugger,
    make_net,
    record_step,
    tensor,
)

NUMBERS = {"Max", "Min", "Mean", "Norm"}
CHECKSUM_SIZES = {"md5": 8, "hash": 16}


def leaves(tree: Any) -> list[dict[str, Any]]:
    """All tensors of a record."""
    if isinstance(tree, list):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return [tree] if tree.get("type") == "mindspore.Tensor" else leaves(list(tree.values()))
    return []


def all_leaves(dump: DumpOnDisk) -> list[dict[str, Any]]:
    return [leaf for fields in dump.records.values() for leaf in leaves(fields)]


def tensor_files() -> list[str]:
    folder = DUMP / "step0" / "rank" / "dump_tensor_data"
    return files_in(folder) if folder.exists() else []


# -- level -------------------------------------------------------------------------------------------------------------


def test_level_l0_records_modules() -> None:
    assert {name.split(".")[0] for name in record_step(level="L0").records} == {"Cell"}


def test_level_l1_records_apis_and_has_module_paths_instead_of_a_nesting() -> None:
    dump = record_step(level="L1")
    assert {name.split(".")[0] for name in dump.records} == {"Functional", "Tensor", "Primitive"}
    assert dump.parents == {}
    assert dump.records["Primitive.matmul.MatMul.0.forward"]["module_path"] == "fc"
    assert dump.records["Primitive.matmul.MatMul.0.backward"]["module_path"] == "fc"


def test_level_mix_records_both_nested() -> None:
    dump = record_step(level="mix")
    assert {name.split(".")[0] for name in dump.records} == {"Functional", "Tensor", "Primitive", "Cell"}
    assert dump.parents["Primitive.matmul.MatMul.0.forward"] == "Cell.fc.Dense.forward.0"
    assert dump.parents["Cell.fc.Dense.forward.0"] == "Cell.Net.forward.0"
    assert dump.parents["Cell.Net.forward.0"] is None


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
        "Cell.conv1.Conv2d.forward.0.input.0.npy",
        "Cell.conv1.Conv2d.forward.0.parameters.bias.npy",
        "Cell.conv1.Conv2d.parameters_grad.weight.npy",
        "Primitive.matmul.MatMul.0.backward.output.1.npy",
    } <= set(names)


def test_a_tensor_file_holds_the_value_that_the_statistics_are_of() -> None:
    dump = record_step(level="L1", task="tensor")
    for leaf in all_leaves(dump):
        array = dump.tensor(leaf)
        assert list(array.shape) == leaf["shape"] and float(array.max()) == leaf["Max"]


def test_task_structure_keeps_neither_numbers_nor_files() -> None:
    dump = record_step(level="mix", task="structure")
    assert "Cell.fc.Dense.backward.0" in dump.records and tensor_files() == []
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
    x = tensor(np.arange(6).reshape(2, 3))
    debugger.save(x, "x")
    debugger.step()
    leaf = dump_of().read("debug.json")["data"]["x.0.debug"]
    assert leaf["md5"] == f"{zlib.crc32(x.asnumpy().tobytes()):08x}"


@pytest.mark.parametrize("is_async", [False, True], ids=["follows", "async"])
@pytest.mark.parametrize("mode", ["statistics", "md5", "hash"])
def test_complex_tensors_have_statistics_and_checksums(mode: str, is_async: bool) -> None:
    debugger = make_debugger(level="L1", summary_mode=mode, async_dump=is_async)
    z = Tensor(np.array([3 + 4j, 0], dtype=np.complex64))
    debugger.start()
    (z + z).abs()
    debugger.stop()
    debugger.step()
    fields = dump_of().records["Tensor.__add__.0.forward"]
    assert fields["input_args"][0]["Max"] == 5.0 and fields["output"][0]["Max"] == 10.0
    assert mode == "statistics" or len(fields["output"][0][mode]) == CHECKSUM_SIZES[mode]


def test_the_checksum_is_of_the_value_at_the_time_of_the_call() -> None:
    debugger = make_debugger(level="L1", summary_mode="hash", async_dump=True)
    x = tensor(np.zeros(1000))
    debugger.start()
    for _ in range(3):
        ops.abs(x)
        x[0] = 1
        x[0] = 0
    debugger.stop()
    records = dump_of().records
    assert len({records[f"Functional.abs.{n}.forward"]["input_args"][0]["hash"] for n in range(3)}) == 1
    assert (
        records["Tensor.__setitem__.0.forward"]["input_args"][0]["hash"]
        != records["Tensor.__setitem__.0.forward"]["output"][0]["hash"]
    )


def test_async_dump_stores_the_same_tensors() -> None:
    def contents(**keys: Any) -> dict[str, Any]:
        dump = record_step(level="mix", task="tensor", **keys)
        found = {leaf["data_name"]: dump.tensor(leaf) for leaf in all_leaves(dump)}
        PrecisionDebugger.reset()
        return found

    follows, late = contents(), contents(async_dump=True)
    assert follows.keys() == late.keys()
    assert all(follows[name].tobytes() == late[name].tobytes() for name in follows)


# -- scope and list ----------------------------------------------------------------------------------------------------


def test_scope_takes_what_runs_between_two_apis() -> None:
    scope = ["Functional.relu.0.forward", "Primitive.matmul.MatMul.0.forward"]
    dump = record_step(level="L1", scope=scope)
    assert list(dump.records) == [scope[0], "Tensor.flatten.0.forward", scope[1]]


def test_scope_takes_what_runs_inside_and_between_two_modules() -> None:
    scope = ["Cell.conv1.Conv2d.forward.0", "Cell.fc.Dense.forward.0"]
    dump = record_step(level="mix", scope=scope, data_mode=["forward"])
    assert list(dump.records) == [
        "Primitive.conv2d.Conv2D.0.forward",
        "Primitive.bias_add.BiasAdd.0.forward",
        "Cell.conv1.Conv2d.forward.0",
        "Functional.relu.0.forward",
        "Tensor.flatten.0.forward",
        "Primitive.matmul.MatMul.0.forward",
        "Primitive.bias_add.BiasAdd.1.forward",
        "Cell.fc.Dense.forward.0",
    ]


def test_scope_of_one_module_takes_what_runs_inside_it() -> None:
    name = "Cell.fc.Dense.forward.0"
    dump = record_step(level="mix", scope=[name, name], data_mode=["forward"])
    assert list(dump.records) == ["Primitive.matmul.MatMul.0.forward", "Primitive.bias_add.BiasAdd.1.forward", name]


def test_scope_may_name_backward_calls() -> None:
    scope = ["Primitive.matmul.MatMul.0.backward", "Functional.relu.0.backward"]
    dump = record_step(level="L1", scope=scope)
    assert list(dump.records) == [scope[0], "Tensor.flatten.0.backward", scope[1]]


def test_scope_begins_anew_with_each_step() -> None:
    debugger = make_debugger(level="L1", scope=["Tensor.sin.0.forward", "Tensor.cos.0.forward"])
    for _ in range(2):
        debugger.start()
        x = ops.ones(1)
        x.sin()
        x.cos()
        x.tan()
        debugger.stop()
        debugger.step()
    expected = ["Tensor.sin.0.forward", "Tensor.cos.0.forward"]
    assert list(dump_of(0).records) == list(dump_of(1).records) == expected


def test_list_takes_every_name_that_contains_one_of_its_parts() -> None:
    dump = record_step(level="L1", list=["relu", "matmul.MatMul.0.back"])
    assert set(dump.records) == {
        "Functional.relu.0.forward",
        "Functional.relu.0.backward",
        "Primitive.matmul.MatMul.0.backward",
    }


def test_a_module_in_the_list_takes_all_inside_it_at_mix() -> None:
    dump = record_step(level="mix", list=["Cell.fc.Dense"])
    assert set(dump.records) == {
        "Primitive.matmul.MatMul.0.forward",
        "Primitive.bias_add.BiasAdd.1.forward",
        "Cell.fc.Dense.forward.0",
        "Primitive.bias_add.BiasAdd.1.backward",
        "Primitive.matmul.MatMul.0.backward",
        "Cell.fc.Dense.backward.0",
        "Cell.fc.Dense.parameters_grad",
    }


def test_indexes_count_calls_that_are_filtered_out() -> None:
    debugger = make_debugger(level="L1", list=["sin.2"])
    debugger.start()
    for _ in range(4):
        ops.ones(1).sin()
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
    assert records["Cell.fc.Dense.forward.0"].keys() & sides - {"buffers"} == forward
    assert records["Primitive.matmul.MatMul.0.backward"].keys() & sides == backward


def test_data_mode_combines_direction_and_side() -> None:
    records = record_step(level="L1", data_mode=["forward", "output"]).records
    assert all(is_forward(name) and "input_args" not in fields for name, fields in records.items())


def test_tensor_list_stores_the_tensors_of_these_calls_only() -> None:
    dump = record_step(level="mix", tensor_list=["relu.0.forward", "Cell.fc"])
    stored = {name for name, fields in dump.records.items() if any("data_name" in leaf for leaf in leaves(fields))}
    assert stored == {
        "Functional.relu.0.forward",
        "Cell.fc.Dense.forward.0",
        "Cell.fc.Dense.backward.0",
        "Cell.fc.Dense.parameters_grad",
    }
    assert all(leaf.keys() >= NUMBERS for leaf in all_leaves(dump))


# -- extra_info and api_yaml -------------------------------------------------------------------------------------------


def test_without_extra_info_there_is_no_stack_json_and_no_construct_json() -> None:
    record_step(level="mix", extra_info=False)
    assert files_in(DUMP / "step0" / "rank") == ["dump.json", "run.json"]


def record_calls(api_yaml: str) -> list[str]:
    """The names of what is recorded of some calls, under a list of APIs."""
    Path("apis.yaml").write_text(api_yaml)
    debugger = make_debugger(level="L1", api_yaml="apis.yaml")
    model, _ = make_net()
    x = tensor(np.ones((2, 8)))
    debugger.start(model)
    model.fc(ops.relu(x)).square().sum()
    mint.nn.functional.linear(mint.nn.functional.relu(x), mint.abs(x))
    ops.size(x)
    debugger.stop()
    return [name.rsplit(".", 2)[0] for name in dump_of().records]


@cache
def record_everything() -> list[str]:
    names = record_calls("tensor: {remove: [nothing]}")
    PrecisionDebugger.reset()
    return names


def test_without_api_yaml_all_that_computes_is_recorded() -> None:
    names = record_calls("tensor: {remove: [nothing]}")
    assert names == [
        "Functional.relu",
        "Primitive.matmul.MatMul",
        "Primitive.bias_add.BiasAdd",
        "Tensor.square",
        "Tensor.sum",
        "MintFunctional.relu",
        "Mint.abs",
        "MintFunctional.linear",
    ]


@pytest.mark.parametrize(
    ("api_yaml", "missing"),
    [
        ("functional: [conv1d]", {"Functional.relu"}),
        ("tensor: {remove: [square]}", {"Tensor.square"}),
        ("mint: {remove: [abs]}", {"Mint.abs"}),
        ("mint_functional: [relu]", {"MintFunctional.linear"}),
        ("primitive: [MatMul]", {"Primitive.bias_add.BiasAdd"}),
        ("primitive: {remove: [BiasAdd]}", {"Primitive.bias_add.BiasAdd"}),
        ("primitive: {remove: [bias_add.BiasAdd]}", {"Primitive.bias_add.BiasAdd"}),
    ],
)
def test_api_yaml_takes_apis_of_every_category_out(api_yaml: str, missing: set[str]) -> None:
    assert set(record_everything()) - set(record_calls(api_yaml)) == missing
    assert dump_of().coverage["excluded"] >= 1


def test_api_yaml_brings_in_what_is_left_out_by_default() -> None:
    assert "Functional.size" in record_calls("functional: {add: [size]}")


def test_an_api_that_is_taken_out_is_not_recorded_under_the_name_of_what_it_calls() -> None:
    names = record_calls("functional: [conv1d]\nmint: [conv1d]\nmint_functional: [conv1d]\ntensor: [abs]")
    assert names == ["Primitive.matmul.MatMul", "Primitive.bias_add.BiasAdd"]


# -- on_nonfinite ------------------------------------------------------------------------------------------------------


def divide_by_zero(debugger: PrecisionDebugger) -> None:
    x = tensor([0.0, 1.0])
    debugger.start()
    gradient_of(lambda x: ops.log(x * 2).sum(), x)
    debugger.stop()


def test_on_nonfinite_stop_raises_with_the_call_that_made_the_first_infinity() -> None:
    debugger = make_debugger(level="L1", on_nonfinite="stop")
    with pytest.raises(NonFiniteError, match=r"Functional\.log\.0\.forward"):
        divide_by_zero(debugger)
    debugger.stop()
    assert "Functional.log.0.forward" in dump_of().records


def test_on_nonfinite_tensors_stores_that_call_says_it_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    divide_by_zero(make_debugger(level="L1", on_nonfinite="tensors"))
    assert "Inf came out of Functional.log.0.forward (output.0: 1), which was given none" in caplog.text
    assert tensor_files() == ["Functional.log.0.forward.input.0.npy", "Functional.log.0.forward.output.0.npy"]
    assert "Functional.log.0.backward" in dump_of().records


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_on_nonfinite_says_nothing_of_a_run_that_is_finite(level: str, caplog: pytest.LogCaptureFixture) -> None:
    record_step(level=level, on_nonfinite="stop")
    assert caplog.text == ""


def test_compiled_eager_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match=r"MindSpore has no such switch: leave it out, .*PYNATIVE_MODE"):
        make_debugger(compiled="eager")
