"""What a primitive was made with is in the records of its calls; so is which parameter and which dtype it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from tests.capture.mindspore.recording import float_tensor, record

KEPT = {"reverse": ops.ReverseV2([1]), "cast": ops.cast}


class Net(nn.Cell):
    """Primitives in cells, one that is kept outside, and kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.norm = nn.LayerNorm((4,), epsilon=1e-3)
        self.pool = ops.MaxPool(kernel_size=(1, 2), strides=(1, 2))
        self.fc.bias.set_data(Tensor(np.zeros(4, np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        y = self.pool(self.norm(self.fc(x)).reshape(1, 1, 2, 4))
        return KEPT["cast"](KEPT["reverse"](y), mindspore.float16)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = Net()
    return record(tmp_path_factory.mktemp("dump"), lambda: model(float_tensor(2, 4)), model).records


def test_settings_are_recorded_by_name(records: Any) -> None:
    norm = records["Primitive.layer_norm.LayerNorm.0.forward"]
    assert norm["settings"] == {
        "begin_norm_axis": {"type": "int", "value": -1},
        "begin_params_axis": {"type": "int", "value": -1},
        "epsilon": {"type": "float", "value": 1e-3},
    }
    assert records["Primitive.matmul.MatMul.0.forward"]["settings"]["transpose_b"] == {"type": "bool", "value": True}


def test_it_is_told_which_of_them_are_tuples(records: Any) -> None:
    pool = records["Primitive.pool.MaxPool.0.forward"]
    assert [leaf["value"] for leaf in pool["settings"]["kernel_size"]] == [1, 2]
    assert pool["tuples"] == ["settings.kernel_size", "settings.strides"]


def test_a_primitive_that_the_program_keeps_has_its_settings_too(records: Any) -> None:
    reverse = records["Primitive.ReverseV2.0.forward"]
    kernel_arguments = [leaf["value"] for leaf in reverse["input_args"][1:] for leaf in leaf]
    made_with = [leaf["value"] for leaf in reverse.get("settings", {}).get("axis", ())]
    assert [*kernel_arguments, *made_with] == [1]


def test_a_kernel_is_given_a_dtype_not_its_number(records: Any) -> None:
    assert records["Primitive.Cast.0.forward"]["input_args"][1] == {"type": "mindspore.dtype", "value": "Float16"}


@pytest.mark.parametrize("dtype", [mindspore.bool_, mindspore.int32, mindspore.uint8, mindspore.float32], ids=str)
def test_a_dtype_of_any_kind_is_recorded_by_its_name(dtype: Any, tmp_path: Path) -> None:
    dump = record(tmp_path, lambda: mint.ones((2,), dtype=dtype))
    leaf = dump.records["Mint.ones.0.forward"]["input_kwargs"]["dtype"]
    assert leaf == {"type": "mindspore.dtype", "value": str(dtype)}


def test_a_parameter_is_recorded_by_its_name_in_the_model(records: Any) -> None:
    given = records["Primitive.matmul.MatMul.0.forward"]["input_args"]
    assert [leaf.get("parameter") for leaf in given] == [None, "fc.weight"]
    assert records["Primitive.bias_add.BiasAdd.0.forward"]["input_args"][1]["parameter"] == "fc.bias"


def test_a_tensor_of_a_later_window_is_not_taken_for_a_parameter(tmp_path: Path) -> None:
    model = nn.Dense(2, 2)
    record(tmp_path / "first", lambda: model(float_tensor(1, 2)), model)
    dump = record(tmp_path / "second", lambda: ops.relu(model.weight))
    assert "parameter" not in dump.records["Functional.relu.0.forward"]["input_args"][0]


def test_that_gradients_were_off_is_recorded(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        with mindspore._no_grad():
            y = ops.exp(x)
        return (x * y).sum()

    dump = record(tmp_path, lambda: mindspore.grad(program)(float_tensor(3)))
    assert dump.records["Functional.exp.0.forward"]["grad_enabled"] is False
    assert "grad_enabled" not in dump.records["Tensor.__mul__.0.forward"]


def test_without_inputs_there_are_no_settings(tmp_path: Path) -> None:
    model = Net()
    dump = record(tmp_path, lambda: model(float_tensor(2, 4)), model, data_mode=["output"])
    assert "settings" not in dump.records["Primitive.layer_norm.LayerNorm.0.forward"]
