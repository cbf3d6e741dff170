"""Which calls of MindSpore are recorded, and under which names."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.mint.nn.functional import linear
from mindspore.ops import relu

from tensorprobe.capture.mindspore.call_mode import NOT_NAMED
from tests.capture.mindspore.recording import float_tensor, forward_names, record

KEPT: list[Callable[[Tensor], Tensor]] = [ops.relu, mint.exp, Tensor.abs]
"""Functions that no name leads to."""


def names_of(folder: Path, work: Callable[[], Any], model: Any = None, **options: Any) -> list[str]:
    return forward_names(record(folder, work, model, **options))


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: ops.relu(x), "Functional.relu.0"),
        (lambda x: ops.exp(x), "Functional.exp.0"),
        (lambda x: ops.reduce_sum(x), "Functional.reduce_sum.0"),
        (lambda x: ops.tensor_add(x, x), "Functional.tensor_add.0"),
        (lambda x: mint.exp(x), "Mint.exp.0"),
        (lambda x: mint.nn.functional.relu(x), "MintFunctional.relu.0"),
        (lambda x: x.sum(), "Tensor.sum.0"),
        (lambda x: Tensor.sum(x), "Tensor.sum.0"),
        (lambda x: x.T, "Tensor.permute.0"),
        (lambda x: x + 1, "Tensor.__add__.0"),
        (lambda x: 1 + x, "Tensor.__radd__.0"),
        (lambda x: x @ x, "Tensor.__matmul__.0"),
        (lambda x: x[0], "Tensor.__getitem__.0"),
        (lambda x: -x, "Tensor.__neg__.0"),
        (lambda x: x > 0, "Tensor.__gt__.0"),
        (lambda x: relu(x), "Functional.relu.0"),
        (lambda x: linear(x, x), "MintFunctional.linear.0"),
        (lambda x: x.astype(mindspore.float16), "Tensor.astype.0"),
    ],
)
def test_a_call_has_the_name_of_where_the_program_found_it(
    work: Callable[[Tensor], Any], name: str, tmp_path: Path
) -> None:
    assert names_of(tmp_path, lambda: work(float_tensor(2, 2))) == [name]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.shape,
        lambda x: x.dtype,
        lambda x: f"{x}",
        lambda x: x.asnumpy(),
        lambda x: x.tolist(),
        lambda x: Tensor([1.0]),
        lambda x: Parameter(x, name="p"),
        lambda x: ops.shape(x),
        lambda x: len(x),
        lambda x: float(x[0, 0]),
    ],
)
def test_what_computes_nothing_is_no_record(work: Callable[[Tensor], Any], tmp_path: Path) -> None:
    names = names_of(tmp_path, lambda: work(float_tensor(2, 2)))
    assert [name for name in names if not name.startswith("Tensor.__getitem__")] == []


def test_only_the_outermost_call_is_a_record(tmp_path: Path) -> None:
    x, target = float_tensor(4, 3), Tensor([0, 1, 2, 0], mindspore.int32)
    assert names_of(tmp_path, lambda: ops.cross_entropy(x, target)) == ["Functional.cross_entropy.0"]


def test_calls_are_counted_by_their_name(tmp_path: Path) -> None:
    x = float_tensor(2)
    work = lambda: (ops.abs(x), mint.abs(x), ops.abs(x), x.abs())  # noqa: E731
    assert names_of(tmp_path, work) == ["Functional.abs.0", "Mint.abs.0", "Functional.abs.1", "Tensor.abs.0"]


def test_a_name_of_another_file_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("some_library")
    exec("from mindspore.ops import tanh as squash\ndef run(x):\n    return squash(x)", vars(module))
    monkeypatch.setitem(sys.modules, "some_library", module)
    assert names_of(tmp_path, lambda: module.run(float_tensor(2))) == ["Functional.tanh.0"]
    assert module.squash is ops.tanh


def test_a_name_that_is_bound_between_two_windows_is_recorded_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("some_library")
    monkeypatch.setitem(sys.modules, "some_library", module)
    record(tmp_path / "first", lambda: None)
    module.squash = ops.tanh
    assert names_of(tmp_path / "second", lambda: module.squash(float_tensor(2))) == ["Functional.tanh.0"]


def test_functions_that_the_program_keeps_are_recorded_by_their_kernels_if_the_model_is_given(tmp_path: Path) -> None:
    x = float_tensor(2, 2)
    names = names_of(tmp_path, lambda: [function(x) for function in KEPT], nn.Dense(2, 2))
    assert names == ["Primitive.ReLU.0", "Primitive.Exp.0", "Primitive.Abs.0"]


def test_functions_that_the_program_keeps_are_counted_as_unseen_if_it_is_not(tmp_path: Path) -> None:
    x = float_tensor(2, 2)
    dump = record(tmp_path, lambda: [function(x) for function in KEPT])
    assert dump.records == {} and dump.coverage["unseen"] == {NOT_NAMED: 3}


def test_a_kept_function_gives_the_same_numbers(tmp_path: Path) -> None:
    x, function = float_tensor(3, 3), partial(ops.softmax, axis=0)
    plain = function(x).asnumpy()
    results: list[Any] = []
    record(tmp_path, lambda: results.append(function(x).asnumpy()), nn.Dense(2, 2))
    assert plain.tobytes() == results[0].tobytes()


def test_what_mindspore_computes_of_types_and_shapes_is_no_record(tmp_path: Path) -> None:
    loss, x = nn.MSELoss(), float_tensor(2, 2)
    for model in (None, loss):
        dump = record(tmp_path / str(model is None), lambda: loss(x, x * 2), model)
        assert not [name for name in forward_names(dump) if name.split(".")[-2][0].islower() and "Primitive" in name]


class Primitives(nn.Cell):
    """A model in the old style."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.activation, self.shape = ops.MatMul(transpose_b=True), ops.ReLU(), ops.Shape()
        self.several = [ops.Exp(), ops.Neg()]

    def construct(self, x: Tensor) -> Tensor:
        y = self.activation(self.product(x, x))
        for primitive in self.several:
            y = primitive(y)
        return y.reshape(self.shape(y))


def test_at_l1_start_with_the_model_records_the_primitives_that_it_holds(tmp_path: Path) -> None:
    model, x = Primitives(), float_tensor(2, 2)
    dump = record(tmp_path, lambda: model(x), model)
    assert forward_names(dump) == [
        "Primitive.product.MatMul.0",
        "Primitive.activation.ReLU.0",
        "Primitive.Exp.0",  # held in a list: seen by its kernel
        "Primitive.Neg.0",
        "Tensor.reshape.0",
    ]
    assert dump.coverage["unseen"] == {} and dump.coverage["failed"] == 0


def test_at_l1_start_without_a_model_records_no_primitives_and_counts_them(tmp_path: Path) -> None:
    model, x = Primitives(), float_tensor(2, 2)
    dump = record(tmp_path, lambda: model(x))
    assert forward_names(dump) == ["Tensor.reshape.0"]
    assert dump.coverage["unseen"] == {NOT_NAMED: 4}


def test_the_gradients_of_primitives_come_back(tmp_path: Path) -> None:
    model, x = Primitives(), float_tensor(2, 2)
    dump = record(tmp_path, lambda: mindspore.grad(lambda x: model(x).sum())(x), model, task="tensor")
    assert {
        "Primitive.product.MatMul.0.backward",
        "Primitive.activation.ReLU.0.backward",
        "Primitive.Exp.0.backward",
        "Primitive.Neg.0.backward",
    } <= dump.records.keys()
    arrived = dump.tensor(dump.records["Primitive.Neg.0.backward"]["input"][0])
    left = dump.tensor(dump.records["Primitive.Neg.0.backward"]["output"][0])
    assert np.array_equal(arrived, -left)


def test_two_objects_of_one_class_are_told_apart_by_their_names(tmp_path: Path) -> None:
    class Two(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = ops.Abs(), ops.Abs()

        def construct(self, x: Tensor) -> Tensor:
            return self.right(self.left(x))

    model = Two()
    names = names_of(tmp_path, lambda: model(float_tensor(2)), model)
    assert names == ["Primitive.left.Abs.0", "Primitive.right.Abs.0"]


def test_keyword_arguments_are_recorded_under_their_names(tmp_path: Path) -> None:
    x = float_tensor(2, 3)
    dump = record(tmp_path, lambda: ops.softmax(x, axis=1), task="tensor")
    kwargs = dump.records["Functional.softmax.0.forward"]["input_kwargs"]
    assert kwargs == {"axis": {"type": "int", "value": 1}}
    dump = record(tmp_path / "tensor", lambda: ops.add(x, other=x), task="tensor")
    leaf = dump.records["Functional.add.0.forward"]["input_kwargs"]["other"]
    assert leaf["data_name"] == "Functional.add.0.forward.kwargs.other.npy"


def test_keyword_tensors_have_gradients(tmp_path: Path) -> None:
    x = float_tensor(2, 3)
    dump = record(tmp_path, lambda: mindspore.grad(lambda y: ops.mul(x, other=y).sum())(x), task="tensor")
    gradient = dump.records["Functional.mul.0.backward"]["output_kwargs"]["other"]
    assert np.array_equal(dump.tensor(gradient), x.asnumpy())


def test_nested_results_are_recorded_as_they_are_nested(tmp_path: Path) -> None:
    x = float_tensor(2, 3)
    dump = record(tmp_path, lambda: (ops.split(x, 1), ops.topk(x, 2), ops.meshgrid(x[0], x[1])), task="tensor")
    records = dump.records
    assert [leaf["shape"] for leaf in records["Functional.split.0.forward"]["output"]] == [[1, 3], [1, 3]]
    assert [leaf["dtype"] for leaf in records["Functional.topk.0.forward"]["output"]] == ["Float32", "Int32"]
    assert records["Functional.meshgrid.0.forward"]["output"][1]["data_name"].endswith("forward.output.1.npy")


def test_a_write_into_a_tensor_has_what_was_before_and_what_came_out(tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0, 3.0])

    def work() -> None:
        x[0] = 9.0
        ops.abs(x)

    dump = record(tmp_path, work, task="tensor")
    fields = dump.records["Tensor.__setitem__.0.forward"]
    assert dump.tensor(fields["input_args"][0]).tolist() == [1.0, 2.0, 3.0]
    assert dump.tensor(fields["output"][0]).tolist() == [9.0, 2.0, 3.0]
    source = dump.records["Functional.abs.0.forward"]["input_args"][0]["source"]
    assert source == "Tensor.__setitem__.0.forward"


def test_an_operator_that_assigns_has_what_was_before_and_what_came_out(tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0])

    def work() -> None:
        y = x
        y += 1

    dump = record(tmp_path, work, task="tensor")
    fields = dump.records["Tensor.__iadd__.0.forward"]
    assert dump.tensor(fields["input_args"][0]).tolist() == [1.0, 2.0]
    assert dump.tensor(fields["output"][0]).tolist() == [2.0, 3.0]


def test_a_parameter_that_is_assigned_is_recorded_before_and_after(tmp_path: Path) -> None:
    weight = Parameter(Tensor([1.0, 2.0]), name="w")
    dump = record(tmp_path, lambda: (ops.assign(weight, Tensor([5.0, 6.0])), ops.abs(weight)), task="tensor")
    before = dump.tensor(dump.records["Functional.assign.0.forward"]["input_args"][0])
    after = dump.tensor(dump.records["Functional.abs.0.forward"]["input_args"][0])
    assert (before.tolist(), after.tolist()) == ([1.0, 2.0], [5.0, 6.0])


@pytest.mark.parametrize("draw", [lambda: ops.randn(2), lambda: ops.dropout(float_tensor(8), 0.5, training=True)])
def test_random_calls_carry_the_state_they_began_with(draw: Callable[[], Tensor], tmp_path: Path) -> None:
    mindspore.set_seed(3)
    plain = [draw().asnumpy() for _ in range(2)]
    mindspore.set_seed(3)
    seen: list[Any] = []
    dump = record(tmp_path, lambda: seen.extend(draw().asnumpy() for _ in range(2)))
    first, second = (fields["generator"] for fields in dump.records.values())
    assert first != second
    assert [array.tobytes() for array in plain] == [array.tobytes() for array in seen]


def test_random_primitives_of_a_model_carry_the_state_they_began_with(tmp_path: Path) -> None:
    def generator_of(folder: str, dropouts_before: int) -> str:
        mindspore.set_seed(3)
        for _ in range(dropouts_before):  # each takes its seeds from those that are left
            nn.Dropout(p=0.5)
        model = nn.Dropout(p=0.5).set_train()
        dump = record(tmp_path / folder, lambda: model(float_tensor(8)), model)
        return str(dump.records["Primitive.dropout.Dropout.0.forward"]["generator"])

    assert generator_of("first", 0) == generator_of("second", 0) != generator_of("third", 1)


def test_dropout_is_the_same_function_before_and_after_and_as_random_inside(tmp_path: Path) -> None:
    original = ops.dropout
    record(tmp_path, lambda: ops.dropout(float_tensor(4), 0.5, training=True))
    assert ops.dropout is original


def test_a_function_keeps_its_name_and_signature_while_it_is_recorded(tmp_path: Path) -> None:
    seen: list[Any] = []
    record(tmp_path, lambda: seen.extend((ops.relu.__name__, ops.relu.__doc__, ops.relu.__module__)))
    assert seen == [ops.relu.__name__, ops.relu.__doc__, ops.relu.__module__]


def test_a_result_is_the_object_that_the_function_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, returned = float_tensor(2), float_tensor(3)
    seen: list[Any] = []

    def replaced(*args: Any) -> Tensor:
        seen.extend(args)
        return returned

    monkeypatch.setattr(ops, "relu", replaced)
    record(tmp_path, lambda: seen.append(ops.relu(given)))
    assert seen[0] is given and seen[1] is returned


def test_a_call_that_raises_is_recorded_as_failed_and_raises(tmp_path: Path) -> None:
    def work() -> None:
        with pytest.raises(TypeError):
            ops.relu("no tensor")
        ops.abs(float_tensor(2))

    dump = record(tmp_path, work)
    assert "TypeError" in dump.records["Functional.relu.0.forward"]["failed"]
    assert "Functional.abs.0.forward" in dump.records and dump.coverage["failed"] == 0


def test_a_call_inside_backward_is_counted_and_not_recorded(tmp_path: Path) -> None:
    def work() -> None:
        def compute(x: Tensor) -> Tensor:
            y = x * 2
            y.register_hook(lambda gradient: ops.abs(gradient))
            return y.sum()

        mindspore.grad(compute)(float_tensor(2))

    dump = record(tmp_path, work)
    assert "Functional.abs.0.forward" not in dump.records
    assert dump.coverage["unseen"] == {"call inside backward": 1}


def magnitude(x: Tensor) -> Tensor:
    return ops.abs(x)


def test_a_function_that_is_given_a_function_works_as_without(tmp_path: Path) -> None:
    vectorised = ops.vmap(magnitude, in_axes=0)
    x = float_tensor(3, 2)
    plain = vectorised(x).asnumpy()
    seen: list[Any] = []
    record(tmp_path, lambda: seen.append(vectorised(x).asnumpy()))
    assert plain.tobytes() == seen[0].tobytes()
