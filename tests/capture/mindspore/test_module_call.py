"""Cells as records: what they are given and return, what they hold, how they are called and nested."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from tests.capture.mindspore.dump import DumpOnDisk
from tests.capture.mindspore.recording import float_tensor, record

Pair = namedtuple("Pair", ["first", "second"])


class Scaled(nn.Cell):
    """A cell with a parameter, a buffer, a keyword and a nested result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor([2.0, 3.0]), name="weight")
        self.register_buffer("offset", Tensor([1.0, 1.0]))

    def construct(self, x: Tensor, *, factors: Any = None) -> Any:
        y = x * self.weight + self.offset
        return y, {"twice": [x * 2, None], "name": "scaled"}


class Outer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def construct(self, x: Tensor) -> Tensor:
        y, more = self.scaled(x, factors={"a": x, "b": 3})
        return y + more["twice"][0]


def train(model: nn.Cell, *inputs: Tensor) -> Any:
    def compute(*given: Tensor) -> Tensor:
        return model(*given).sum()

    return mindspore.grad(compute, 0, model.trainable_params())(*inputs)


def record_cells(folder: Path, model: Any, *inputs: Tensor, **options: Any) -> DumpOnDisk:
    return record(folder, lambda: train(model, *inputs), model, **{"level": "L0", "task": "tensor", **options})


def cells(dump: DumpOnDisk, direction: str = "forward") -> list[str]:
    return [name for name in dump.records if f".{direction}." in name]


def test_a_cell_has_its_inputs_keywords_parameters_buffers_and_nested_results(tmp_path: Path) -> None:
    dump = record_cells(tmp_path, Outer(), Tensor([1.0, 2.0]))
    fields = dump.records["Cell.scaled.Scaled.forward.0"]
    assert dump.tensors(fields["input_args"])[0].tolist() == [1.0, 2.0]
    assert fields["input_kwargs"]["factors"]["b"] == {"type": "int", "value": 3}
    assert fields["input_kwargs"]["factors"]["a"]["data_name"] == "Cell.scaled.Scaled.forward.0.kwargs.factors.a.npy"
    assert dump.tensors(fields["parameters"])["weight"].tolist() == [2.0, 3.0]
    assert dump.tensors(fields["buffers"])["offset"].tolist() == [1.0, 1.0]
    first, nested = fields["output"]
    assert dump.tensor(first).tolist() == [3.0, 7.0]
    assert dump.tensor(nested["twice"][0]).tolist() == [2.0, 4.0]
    assert nested["twice"][1] is None and nested["name"]["value"] == "scaled"


def test_the_gradients_of_a_cell_are_nested_as_its_results(tmp_path: Path) -> None:
    dump = record_cells(tmp_path, Outer(), Tensor([1.0, 2.0]))
    fields = dump.records["Cell.scaled.Scaled.backward.0"]
    assert dump.tensor(fields["input"][0]).tolist() == [1.0, 1.0]
    assert dump.tensor(fields["input"][1]["twice"][0]).tolist() == [1.0, 1.0]
    assert dump.tensor(fields["output"][0]).tolist() == [4.0, 5.0]  # the weight, and 2
    assert dump.tensors(dump.records["Cell.scaled.Scaled.parameters_grad"])["weight"][0].tolist() == [1.0, 2.0]


def test_a_parameter_is_with_the_cell_that_holds_it_only(tmp_path: Path) -> None:
    dump = record_cells(tmp_path, Outer(), Tensor([1.0, 2.0]))
    assert dump.records["Cell.Outer.forward.0"]["parameters"] == {}
    assert [name for name in dump.records if name.endswith("parameters_grad")] == ["Cell.scaled.Scaled.parameters_grad"]


def test_cells_in_lists_and_sequences_have_their_positions_as_names(tmp_path: Path) -> None:
    class Listed(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([nn.Dense(2, 2), nn.Tanh()])
            self.block = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())

        def construct(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.block(x)

    dump = record_cells(tmp_path, Listed(), float_tensor(1, 2))
    assert cells(dump) == [
        "Cell.layers.0.Dense.forward.0",
        "Cell.layers.1.Tanh.forward.0",
        "Cell.block.0.Dense.forward.0",
        "Cell.block.1.ReLU.forward.0",
        "Cell.block.SequentialCell.forward.0",
        "Cell.Listed.forward.0",
    ]
    assert dump.parents["Cell.block.1.ReLU.forward.0"] == "Cell.block.SequentialCell.forward.0"
    assert {name.replace("forward", "backward") for name in cells(dump)} == set(cells(dump, "backward"))


def test_a_cell_that_is_called_twice_has_two_records_and_one_total_gradient(tmp_path: Path) -> None:
    class Twice(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor([3.0]), name="w")
            self.inner = Inner(self.weight)

        def construct(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    class Inner(nn.Cell):
        def __init__(self, weight: Parameter) -> None:
            super().__init__()
            self.weight = weight

        def construct(self, x: Tensor) -> Tensor:
            return x * self.weight

    dump = record_cells(tmp_path, Twice(), Tensor([2.0]))
    assert cells(dump)[:2] == ["Cell.inner.Inner.forward.0", "Cell.inner.Inner.forward.1"]
    gradients = {name: dump.tensor(dump.records[name]["output"][0]).item() for name in cells(dump, "backward")[:2]}
    assert gradients == {"Cell.inner.Inner.backward.1": 3.0, "Cell.inner.Inner.backward.0": 9.0}
    (holder,) = (name for name in dump.records if name.endswith("parameters_grad"))
    assert dump.tensors(dump.records[holder])["weight"][0].item() == 12.0  # 2 * 3 + 2 * 3


def test_a_cell_that_has_two_places_in_a_model_has_the_name_of_the_first(tmp_path: Path) -> None:
    class Shared(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dense(2, 2)
            self.second = self.first

        def construct(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    dump = record_cells(tmp_path, Shared(), float_tensor(1, 2))
    assert cells(dump)[:2] == ["Cell.first.Dense.forward.0", "Cell.first.Dense.forward.1"]


def test_several_models_carry_their_index(tmp_path: Path) -> None:
    generator, critic = nn.Dense(2, 2), nn.SequentialCell(nn.Dense(2, 1))
    x = float_tensor(1, 2)
    dump = record(tmp_path, lambda: critic(generator(x)), [generator, critic], level="L0")
    assert cells(dump) == ["Cell.0.Dense.forward.0", "Cell.1.0.Dense.forward.0", "Cell.1.SequentialCell.forward.0"]


@pytest.mark.parametrize("result", [None, 3, "text", [], {}, (), Pair(1, None)], ids=repr)
def test_a_cell_may_return_anything(result: Any, tmp_path: Path) -> None:
    class Odd(nn.Cell):
        def construct(self, x: Tensor) -> Any:
            return result

    model, seen = Odd(), []
    dump = record(tmp_path, lambda: seen.append(model(float_tensor(1))), model, level="L0")
    assert seen == [result] and "Cell.Odd.forward.0" in dump.records and dump.coverage["failed"] == 0


def test_a_cell_may_take_anything(tmp_path: Path) -> None:
    class Odd(nn.Cell):
        def construct(self, *args: Any, **kwargs: Any) -> int:
            return len(args) + len(kwargs)

    model = Odd()
    given = (None, "a", [1, {"x": float_tensor(2)}], mindspore.float16, np.ones(2), slice(1), len)
    dump = record(tmp_path, lambda: model(*given, key=Pair(1, float_tensor(1))), model, level="L0", task="tensor")
    fields = dump.records["Cell.Odd.forward.0"]
    assert fields["input_args"][2][1]["x"]["data_name"] == "Cell.Odd.forward.0.input.2.1.x.npy"
    assert fields["input_args"][3] == {"type": "mindspore.dtype", "value": "Float16"}
    assert fields["input_kwargs"]["key"]["second"]["shape"] == [1]
    assert dump.coverage["failed"] == 0


def test_a_cell_that_calls_itself_is_recorded_each_time(tmp_path: Path) -> None:
    class Recursive(nn.Cell):
        def construct(self, x: Tensor, depth: int = 3) -> Tensor:
            return self(x * 2, depth - 1) if depth else x

    dump = record_cells(tmp_path, Recursive(), Tensor([1.0]))
    assert sorted(cells(dump)) == [f"Cell.Recursive.forward.{number}" for number in range(4)]
    assert dump.parents["Cell.Recursive.forward.3"] == "Cell.Recursive.forward.2"
    assert len(cells(dump, "backward")) == 4


def test_a_cell_that_raises_is_recorded_as_failed_with_those_around_it(tmp_path: Path) -> None:
    class Broken(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            raise ArithmeticError("of the user")

    model = nn.SequentialCell(nn.ReLU(), Broken())

    def work() -> None:
        with pytest.raises(ArithmeticError, match="of the user"):
            model(float_tensor(1))

    dump = record(tmp_path, work, model, level="L0")
    failed = {name: fields["failed"] for name, fields in dump.records.items() if "failed" in fields}
    assert failed == dict.fromkeys(
        ["Cell.1.Broken.forward.0", "Cell.SequentialCell.forward.0"], "ArithmeticError: of the user"
    )


def test_a_cell_outside_of_the_model_is_not_recorded_at_l0(tmp_path: Path) -> None:
    model, other = nn.Dense(2, 2), nn.Dense(2, 2)
    dump = record(tmp_path, lambda: other(model(float_tensor(1, 2))), model, level="L0")
    assert list(dump.records) == ["Cell.Dense.forward.0"]


def test_cells_that_are_added_while_the_window_is_open_do_no_harm(tmp_path: Path) -> None:
    model = nn.CellList([nn.Dense(2, 2)])

    def work() -> None:
        model.append(nn.Dense(2, 2))
        for layer in model:
            layer(float_tensor(1, 2))

    dump = record(tmp_path, work, model, level="mix")
    assert "Cell.0.Dense.forward.0" in dump.records and dump.coverage["failed"] == 0


def test_at_l1_without_a_model_calls_know_where_in_the_outermost_cell_they_were_made(tmp_path: Path) -> None:
    class Inner(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return ops.abs(x)

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.SequentialCell(Inner())

        def construct(self, x: Tensor) -> Tensor:
            return ops.exp(self.block(x))

    model = Model()
    dump = record(tmp_path, lambda: (model(float_tensor(1)), ops.exp(float_tensor(1))))
    paths = {name: fields.get("module_path") for name, fields in dump.records.items()}
    assert paths == {
        "Functional.abs.0.forward": "block.0",
        "Functional.exp.0.forward": "",
        "Functional.exp.1.forward": None,
    }


def test_frozen_parameters_are_recorded_and_have_no_gradient(tmp_path: Path) -> None:
    model = nn.Dense(2, 2)
    model.weight.requires_grad = False
    dump = record_cells(tmp_path, model, float_tensor(1, 2))
    assert dump.records["Cell.Dense.forward.0"]["parameters"]["weight"]["requires_grad"] is False
    assert dump.records["Cell.Dense.parameters_grad"].keys() == {"bias"}


def test_running_statistics_are_recorded_as_they_were_before_the_call(tmp_path: Path) -> None:
    model = nn.BatchNorm2d(2, momentum=0.5)
    model.set_train()
    x = float_tensor(2, 2, 3, 3)
    dump = record(tmp_path, lambda: (model(x), model(x)), model, level="L0", task="tensor")
    first, second = (
        dump.tensor(dump.records[f"Cell.BatchNorm2d.forward.{number}"]["parameters"]["moving_mean"])
        for number in (0, 1)
    )
    assert first.tolist() == [0.0, 0.0] and second.tolist() != first.tolist()


def test_the_random_layers_of_a_model_in_training_carry_the_state_of_the_generator(tmp_path: Path) -> None:
    model = nn.SequentialCell(nn.Dropout(p=0.5), nn.ReLU())
    for is_training in (True, False):
        model.set_train(is_training)
        dump = record(tmp_path / str(is_training), lambda: model(float_tensor(4)), model, level="L0")
        assert ("generator" in dump.records["Cell.0.Dropout.forward.0"]) is is_training
        assert "generator" not in dump.records["Cell.1.ReLU.forward.0"]


def test_a_users_forward_hooks_see_and_change_what_they_did_before(tmp_path: Path) -> None:
    model = nn.ReLU()
    model.register_forward_pre_hook(lambda cell, args: (args[0] * 2,))
    model.register_forward_hook(lambda cell, args, output: output + 1)
    seen: list[Any] = []
    dump = record(tmp_path, lambda: seen.append(model(Tensor([1.0]))), model, level="L0", task="tensor")
    fields = dump.records["Cell.ReLU.forward.0"]
    assert seen[0].asnumpy().tolist() == [3.0]
    assert dump.tensor(fields["input_args"][0]).tolist() == [1.0] and dump.tensor(fields["output"][0]).tolist() == [3.0]


def test_a_cell_with_its_own_backward_is_recorded(tmp_path: Path) -> None:
    class Clipped(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * 3

        def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
            return (dout * 100,)

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.clipped = Clipped()

        def construct(self, x: Tensor) -> Tensor:
            return self.clipped(x * 2) * 5

    model, x = Model(), Tensor([1.0])
    plain = mindspore.grad(lambda x: model(x).sum())(x).asnumpy()
    seen: list[Any] = []

    def work() -> None:
        seen.append(mindspore.grad(lambda x: model(x).sum())(x).asnumpy())

    dump = record(tmp_path, work, model, level="L0", task="tensor")
    fields = dump.records["Cell.clipped.Clipped.backward.0"]
    assert plain.tolist() == seen[0].tolist() == [1000.0]
    assert dump.tensor(fields["input"][0]).tolist() == [5.0] and dump.tensor(fields["output"][0]).tolist() == [500.0]
