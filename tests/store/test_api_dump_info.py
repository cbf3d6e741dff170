"""Lines of the info file: what is in a record comes out of its lines again, under the names of the manual."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.model.record import Stats, TensorLeaf, Value
from tensorprobe.store.api_dump_info import iter_lines, parse_line


def leaf(dtype: str = "torch.float32", shape: tuple[int, ...] = (2, 3), **numbers: Any) -> TensorLeaf:
    stats = Stats(**{"max": 1.5, "min": -1.0, "mean": 0.25, "norm": 2.0, **numbers})
    return TensorLeaf("torch.Tensor", dtype, shape, None, Value(stats))


def lines(name: str, fields: dict[str, Any], *, is_filtered: bool = True) -> list[Any]:
    return [json.loads(line) for line in iter_lines(name, fields, is_filtered=is_filtered)]


def names(name: str, fields: dict[str, Any], *, is_filtered: bool = True) -> list[str]:
    return [line[0] for line in lines(name, fields, is_filtered=is_filtered)]


def test_a_line_is_the_list_that_troubleshooter_writes() -> None:
    assert lines("NN_Conv2d_0_forward", {"output": [leaf(shape=(2, 5, 4, 4))]}) == [
        ["NN_Conv2d_0_forward_output", 1, [], "torch.float32", [2, 5, 4, 4], [1.5, -1.0, 0.25]]
    ]


def test_inputs_are_numbered_and_a_single_result_is_not() -> None:
    fields = {"input_args": [leaf(), [leaf(), leaf()]], "input_kwargs": {"other": leaf()}, "output": [leaf()]}
    assert names("Torch_cat_0_forward", fields) == [
        "Torch_cat_0_forward_input.0",
        "Torch_cat_0_forward_input.1.0",
        "Torch_cat_0_forward_input.1.1",
        "Torch_cat_0_forward_kwargs.other",
        "Torch_cat_0_forward_output",
    ]
    several = {"output": [leaf(), leaf()]}
    assert names("Torch_split_0_forward", several) == [
        "Torch_split_0_forward_output.0",
        "Torch_split_0_forward_output.1",
    ]


def test_a_gradient_is_named_as_what_it_is_the_gradient_of() -> None:
    fields = {"input": [leaf()], "output": [leaf()], "output_kwargs": {"other": leaf()}}
    assert names("NN_Dense_1_backward", fields) == [
        "NN_Dense_1_backward_input",
        "NN_Dense_1_backward_output.0",
        "NN_Dense_1_backward_kwargs.other",
    ]


def test_the_filter_leaves_out_single_numbers_and_what_is_not_floating() -> None:
    fields = {
        "input_args": [leaf("torch.int64"), leaf(shape=()), leaf("torch.bfloat16"), {"type": "int", "value": 3}, None],
        "output": [leaf("torch.bool"), {"type": "str", "value": "x"}, leaf(shape=(0, 3))],
    }
    assert names("Torch_x_0_forward", fields) == ["Torch_x_0_forward_input.2"]
    assert names("Torch_x_0_forward", fields, is_filtered=False) == [
        "Torch_x_0_forward_input.0",
        "Torch_x_0_forward_input.1",
        "Torch_x_0_forward_input.2",
        "Torch_x_0_forward_input.3",
        "Torch_x_0_forward_output.0",
        "Torch_x_0_forward_output.2",
    ]
    number = lines("Torch_x_0_forward", {"input_args": [{"type": "int", "value": 3}]}, is_filtered=False)
    assert number == [["Torch_x_0_forward_input.0", 1, [], "<class 'int'>", [], [3, 3, 3]]]


def test_parameters_have_no_lines() -> None:
    assert names("NN_Dense_0_forward", {"parameters": {"weight": leaf()}, "module_path": "fc"}) == []


def test_what_is_not_a_number_stands_as_python_writes_it() -> None:
    (line,) = iter_lines("NN_X_0_forward", {"output": [leaf(max=float("inf"), mean=None)]}, is_filtered=True)
    assert line.endswith("[Infinity, -1.0, NaN]]")


roles = st.sampled_from(["input", "output", "kwargs"])
places = st.lists(st.integers(0, 9).map(str), max_size=3).map(".".join)


@given(st.from_regex(r"[A-Z][a-z]+_[a-z_]{1,9}_[0-9]", fullmatch=True), roles, places)
def test_a_name_is_taken_apart_where_it_was_put_together(call: str, role: str, place: str) -> None:
    slot = f"{call}_forward_{role}{'.' if place else ''}{place}"
    parsed = parse_line([slot, 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]])
    assert parsed is not None
    record, found_role, found_place, tensor = parsed
    assert (record, found_role, found_place) == (f"{call}_forward", role, place)
    assert (tensor["dtype"], tensor["shape"], tensor["Max"], tensor["Mean"]) == ("torch.float32", [2], 1.0, 0.5)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=9)))
def test_whatever_a_line_holds_it_is_a_leaf_or_nothing(line: Any) -> None:
    parsed = parse_line(line)
    assert parsed is None or isinstance(parsed[3], dict)


@pytest.mark.parametrize(
    "line",
    [
        ["no name of a record", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]],
        ["NN_X_0_forward_weight", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]],
        ["NN_X_0_forward_output", 1, [], "torch.float32", [2]],
        [7, 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]],
        "NN_X_0_forward_output",
    ],
    ids=str,
)
def test_a_line_that_names_no_place_of_a_record_is_none(line: Any) -> None:
    assert parse_line(line) is None


def test_later_versions_add_a_checksum_and_a_norm() -> None:
    parsed = parse_line(["NN_X_0_forward_output", 1, [], "Float32", [2], [1.0, 0.0, 0.5], "abc", 3.5])
    assert parsed is not None and (parsed[3]["md5"], parsed[3]["Norm"]) == ("abc", 3.5)
