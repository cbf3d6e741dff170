"""A backward record has this call's own share of the gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from tests.capture.mindspore.dump import DumpOnDisk, only_step
from tests.capture.mindspore.models import MODELS
from tests.capture.mindspore.training import open_session, recorded_step


def record(folder: Path, program: Any, *args: Any, model: Any = None, level: str = "L1", **options: Any) -> DumpOnDisk:
    session = open_session(folder, level=level, task="tensor", **options)
    with recorded_step(session, model):
        program(*args)
    session.close()
    dump = only_step(folder)
    assert dump.coverage["failed"] == 0
    return dump


def numbers(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


def test_each_use_of_a_tensor_has_its_own_share(tmp_path: Path) -> None:
    dump = record(tmp_path, mindspore.grad(lambda x: (x * 2.0 + x * 3.0).sum()), numbers(1, 2))
    shares = [dump.tensors(dump.records[f"Tensor.__mul__.{n}.backward"]["output"])[0] for n in (0, 1)]
    assert [share.tolist() for share in shares] == [[2.0, 2.0], [3.0, 3.0]]


def test_the_operands_of_a_square_are_told_apart(tmp_path: Path) -> None:
    dump = record(tmp_path, mindspore.grad(lambda x: ops.mul(x, x).sum()), numbers(1, 2))
    first, second = dump.tensors(dump.records["Functional.mul.0.backward"]["output"])
    assert first.tolist() == second.tolist() == [1.0, 2.0]


def test_a_result_that_nobody_uses_has_no_gradient(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        first, second, third = ops.split(x, 1)
        del second
        return (first * third).sum()

    dump = record(tmp_path, mindspore.grad(program), numbers(2, 3, 4))
    backward = dump.records["Functional.split.0.backward"]
    gradients = dump.tensors(backward["input"])
    assert [None if one is None else one.tolist() for one in gradients] == [[4.0], None, [2.0]]
    assert dump.tensors(backward["output"])[0].tolist() == [4.0, 0.0, 2.0]


def test_gradients_of_keywords_are_recorded(tmp_path: Path) -> None:
    dump = record(tmp_path, mindspore.grad(lambda x: mint.add(x, other=x * 2, alpha=3).sum()), numbers(1, 2))
    backward = dump.records["Mint.add.0.backward"]
    assert dump.tensors(backward["output"])[0].tolist() == [1.0, 1.0]
    assert dump.tensors(backward["output_kwargs"])["other"].tolist() == [3.0, 3.0]


def test_what_is_cut_off_has_no_gradient(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return (ops.stop_gradient(ops.exp(x)) * x).sum()

    dump = record(tmp_path, mindspore.grad(program), numbers(0, 0))
    assert "Functional.exp.0.backward" not in dump.records
    left, right = dump.tensors(dump.records["Tensor.__mul__.0.backward"]["output"])
    assert left is None
    assert right.tolist() == [1.0, 1.0]


def test_without_a_gradient_asked_for_there_is_no_backward(tmp_path: Path) -> None:
    dump = record(tmp_path, lambda x: ops.relu(x).sum(), numbers(1, -1))
    assert list(dump.records) == ["Functional.relu.0.forward", "Tensor.sum.0.forward"]


@pytest.mark.parametrize("name", MODELS)
def test_module_gradients_equal_those_of_mindspores_own_hooks(name: str, tmp_path: Path) -> None:
    mindspore.set_seed(3)
    np.random.seed(3)
    model, loss_of, batches = MODELS[name]()
    compute = mindspore.value_and_grad(lambda batch: loss_of(model, batch), None, model.trainable_params())
    arrived: dict[str, Any] = {}
    paths = {id(cell): path for path, cell in model.cells_and_names()}

    def hook(cell: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        found = grad_outputs if isinstance(grad_outputs, tuple) else (grad_outputs,)
        arrived[paths[id(cell)]] = [None if grad is None else grad.asnumpy().copy() for grad in found]

    handles = [cell.register_backward_hook(hook) for _, cell in model.cells_and_names()]
    compute(batches[0])
    for handle in handles:
        handle.remove()
    dump = record(tmp_path, compute, batches[0], model=model, level="L0")
    compared = 0
    for path, cell in model.cells_and_names():
        key = f"Cell.{path}.{type(cell).__name__}.backward.0" if path else f"Cell.{type(cell).__name__}.backward.0"
        if path in arrived and key in dump.records and arrived[path][0] is not None:
            ours = dump.tensors(dump.records[key]["input"])[0]
            assert np.array_equal(ours, arrived[path][0]), key
            compared += 1
    assert compared >= len(arrived) - 1 >= 2


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", MODELS)
def test_parameter_gradients_are_those_that_the_program_gets(name: str, level: str, tmp_path: Path) -> None:
    model, loss_of, batches = MODELS[name]()
    parameters = model.trainable_params()
    got: list[Any] = []
    compute = mindspore.grad(lambda batch: loss_of(model, batch), None, parameters)
    dump = record(tmp_path, lambda batch: got.extend(compute(batch)), batches[0], model=model, level=level)
    recorded = {
        f"{key.split('.', 1)[1].rsplit('.', 2)[0]}.{name}": dump.tensors(leaf)[0]
        for key, fields in dump.records.items()
        if key.endswith(".parameters_grad")
        for name, leaf in fields.items()
    }
    expected = {parameter.name: gradient.asnumpy() for parameter, gradient in zip(parameters, got, strict=True)}
    assert recorded.keys() == expected.keys()
    assert all(np.array_equal(recorded[key], expected[key]) for key in expected)


def test_a_parameter_that_two_cells_share_has_the_sum(tmp_path: Path) -> None:
    class Tied(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones((2, 2), np.float32)))

        def construct(self, x: Tensor) -> Tensor:
            return ops.matmul(ops.matmul(x, self.weight), self.weight).sum()

    model = Tied()
    got: list[Any] = []
    compute = mindspore.grad(model, None, model.trainable_params())
    dump = record(
        tmp_path, lambda x: got.extend(compute(x)), Tensor(np.eye(2, dtype=np.float32)), model=model, level="mix"
    )
    recorded = dump.tensors(dump.records["Cell.Tied.parameters_grad"]["weight"])[0]
    assert np.array_equal(recorded, got[0].asnumpy())
    shares = [dump.tensors(dump.records[f"Functional.matmul.{n}.backward"]["output"])[1] for n in (0, 1)]
    assert np.array_equal(shares[0] + shares[1], recorded)


def test_a_gradient_of_a_gradient_is_computed_as_without_capture(tmp_path: Path) -> None:
    compute = mindspore.grad(lambda x: mindspore.grad(lambda y: (y**3).sum())(x).sum())
    expected = compute(numbers(1, 2)).asnumpy()
    got: list[Any] = []
    record(tmp_path, lambda x: got.append(compute(x).asnumpy()), numbers(1, 2))
    assert np.array_equal(got[0], expected)


def test_the_backward_of_a_step_that_is_over_is_not_recorded(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="L1")

    def program(x: Tensor) -> Tensor:
        session.start(None)
        y = ops.exp(x)
        session.stop()
        session.step()
        return y.sum()

    gradient = mindspore.grad(program)(numbers(0, 0))
    session.close()
    assert gradient.asnumpy().tolist() == [1.0, 1.0]
    assert list(only_step(tmp_path).records) == ["Functional.exp.0.forward"]


def test_the_backward_after_stop_is_recorded_until_the_step_ends(tmp_path: Path) -> None:
    session = open_session(tmp_path, level="mix", task="tensor")
    model = nn.Dense(2, 2)

    def program(x: Tensor) -> Tensor:
        session.start(model)
        y = model(x)
        session.stop()
        return y.sum()

    mindspore.grad(program, None, model.trainable_params())(Tensor(np.ones((1, 2), np.float32)))
    records = only_step(tmp_path).records
    session.step()
    session.close()
    assert {"Cell.Dense.backward.0", "Cell.Dense.parameters_grad"} <= records.keys()
    assert not any(parameter.hooks() for parameter in model.trainable_params())
