"""`debugger.save(variable, name)` in what is differentiated: gradients, with the number of their forward."""

from __future__ import annotations

from collections import namedtuple

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore.point import differentiate, make, points, tensors, value
from tests.mindspore.program import DUMP, make_net, tensor

Pair = namedtuple("Pair", ["left", "right"])
PLACES = ("key1", "key2.0", "key2.1")


def test_a_plain_tensor_and_its_gradient_have_files_without_an_index() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        x2 = x * 3
        debugger.save(x2, "x2")
        return (x2 * tensor([4.0, 5.0])).sum()

    differentiate(compute, tensor([1.0, 2.0]))
    debugger.step()
    assert tensors() == ["x2.0.debug.npy", "x2_grad.0.debug.npy"]
    assert list(points()) == ["x2.0.debug", "x2_grad.0.debug"]
    assert value("x2.0.debug").tolist() == [3.0, 6.0]
    assert value("x2_grad.0.debug").tolist() == [4.0, 5.0]


def test_nested_values_have_their_keys_and_0_based_positions_in_the_names() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        a, b, c = (x * number for number in (1, 2, 3))
        debugger.save({"key1": a, "key2": [b, c]}, "x2")
        return (a + 2 * b + 3 * c).sum()

    differentiate(compute, tensor([1.0, 1.0]))
    debugger.step()
    assert tensors() == [f"x2{grad}.0.debug.{place}.npy" for grad in ("", "_grad") for place in PLACES]
    assert value("x2_grad.0.debug")["key2"][1].tolist() == [3.0, 3.0]


def test_a_named_tuple_of_tensors_has_gradients_by_its_fields() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        pair = Pair(x * 2, tensor([0.0]))
        debugger.save(pair, "p")
        return pair.left.sum()

    differentiate(compute)
    debugger.step()
    assert tensors() == ["p.0.debug.left.npy", "p.0.debug.right.npy", "p_grad.0.debug.left.npy"]


def test_a_gradient_has_the_number_of_its_forward_when_they_come_in_another_order() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        for factor in (2.0, 3.0, 4.0):
            x = x * factor
            debugger.save(x, "x")
        return x

    differentiate(compute)
    debugger.step()
    assert list(points())[3:] == ["x_grad.2.debug", "x_grad.1.debug", "x_grad.0.debug"]
    assert [value(f"x_grad.{n}.debug").item() for n in range(3)] == [12.0, 4.0, 1.0]


def test_a_gradient_has_the_number_of_its_forward_when_only_some_have_one() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        debugger.save(tensor([1.0]), "x")
        debugger.save(x * 2, "x")
        used = x * 3
        debugger.save(used, "x")
        return used

    differentiate(compute)
    debugger.step()
    assert list(points()) == ["x.0.debug", "x.1.debug", "x.2.debug", "x_grad.2.debug"]


def test_in_a_nesting_the_places_without_a_gradient_are_null() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        used, unused = x * 2, x * 3
        debugger.save({"a": [used, unused, 5, None], "b": tensor([1.0])}, "x")
        return used

    differentiate(compute)
    debugger.step()
    gradient = points()["x_grad.0.debug"]
    assert gradient["a"][0]["Max"] == 1.0
    assert gradient["a"][1:] == [None, None, None] and gradient["b"] is None


def test_the_gradient_is_the_sum_over_all_who_use_the_tensor() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        y = x * 2
        debugger.save(y, "y")
        return (y * 3 + y * 4).sum()

    differentiate(compute)
    debugger.step()
    assert value("y_grad.0.debug").item() == 7.0


def test_the_gradient_of_an_output_among_several_of_one_operation_is_its_own() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        first, second = ops.split(x * 1, 1)
        debugger.save(first, "first")
        debugger.save(second, "second")
        return (first * 3 + second * 5).sum()

    differentiate(compute, tensor([1.0, 2.0]))
    debugger.step()
    assert (value("first_grad.0.debug").item(), value("second_grad.0.debug").item()) == (3.0, 5.0)


def test_inputs_and_parameters_have_their_gradients() -> None:
    debugger = make()
    layer = nn.Dense(2, 1)

    def compute(x: Tensor) -> Tensor:
        debugger.save(layer.weight, "w")
        debugger.save(x, "x")
        return layer(x).sum()

    of_input, of_weights = mindspore.grad(compute, 0, layer.trainable_params())(tensor([[1.0, 2.0]]))
    debugger.step()
    assert np.array_equal(value("w_grad.0.debug"), of_weights[0].asnumpy())
    assert np.array_equal(value("x_grad.0.debug"), of_input.asnumpy())
    assert layer.weight.hooks() == []


def test_the_gradient_of_a_parameter_is_recorded_once_per_step() -> None:
    debugger = make()
    layer = nn.Dense(2, 1)

    def compute(x: Tensor) -> Tensor:
        debugger.save(layer.weight, "w")
        return layer(x).sum()

    for _ in range(3):
        mindspore.grad(compute, None, layer.trainable_params())(tensor([[1.0, 2.0]]))
        debugger.step()
    assert [list(points(step)) for step in range(3)] == [["w.0.debug", "w_grad.0.debug"]] * 3


def test_outside_of_a_gradient_the_value_is_saved_and_no_gradient_is_expected() -> None:
    debugger = make()
    weight = Parameter(tensor([1.0, 2.0]), name="w")
    debugger.save(weight * 2, "y")
    debugger.save(weight, "w")
    differentiate(lambda x: (x * weight).sum())
    debugger.step()
    assert list(points()) == ["y.0.debug", "w.0.debug"] and weight.hooks() == []


def test_what_stops_the_gradient_has_none() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        stopped = ops.stop_gradient(x * 2)
        debugger.save(stopped, "stopped")
        return (stopped * x).sum()

    differentiate(compute)
    debugger.step()
    assert list(points()) == ["stopped.0.debug"]


def test_without_save_backward_no_gradient_is_saved() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        y = x * 2
        debugger.save(y, "x", save_backward=False)
        debugger.save(y, "y", False)
        return y.sum()

    differentiate(compute)
    debugger.step()
    assert list(points()) == ["x.0.debug", "y.0.debug"]


def test_a_gradient_that_comes_after_step_is_not_saved() -> None:
    debugger = make()

    def compute(x: Tensor) -> Tensor:
        y = x * 2
        debugger.save(y, "x")
        debugger.step()
        return y

    differentiate(compute)
    debugger.save(1, "y")
    debugger.step()
    assert list(points(0)) == ["x.0.debug"] and list(points(1)) == ["y.0.debug"]


def test_with_value_and_grad_and_aux_the_gradients_come_too() -> None:
    debugger = make()
    layer = nn.Dense(2, 1)

    def compute(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = layer(x)
        debugger.save(hidden, "hidden")
        return (hidden * 2).sum(), hidden

    run = mindspore.value_and_grad(compute, 0, layer.trainable_params(), has_aux=True)
    run(tensor([[1.0, 2.0]]))
    debugger.step()
    assert value("hidden_grad.0.debug").tolist() == [[2.0]]


def test_inside_construct_of_a_cell_it_works_as_in_the_manual() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="debug")

    class CellOP(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.linear_1 = nn.Dense(8, 4)
            self.linear_2 = nn.Dense(4, 2)

        def construct(self, x: Tensor) -> Tensor:
            x1 = self.linear_1(x)
            x2 = self.linear_2(x1)
            debugger.save(x2, "x2", save_backward=True)
            return ops.relu(x2)

    cell = CellOP()
    for _ in range(2):
        mindspore.grad(lambda x: cell(x).sum(), None, cell.trainable_params())(ops.randn(10, 8))
        debugger.step()
    assert list(points(0)) == list(points(1)) == ["x2.0.debug", "x2_grad.0.debug"]


def test_training_is_bit_identical_while_values_are_saved() -> None:
    def train(debugger: PrecisionDebugger | None) -> list[bytes]:
        model, x = make_net()

        def compute(image: Tensor) -> Tensor:
            hidden = model.conv1(image)
            if debugger is not None:
                debugger.save([hidden, model.fc.weight], "h")
            return model.fc(ops.relu(hidden).flatten(start_dim=1)).square().sum()

        found = []
        for _ in range(2):
            found += mindspore.grad(compute, None, model.trainable_params())(x)
            if debugger is not None:
                debugger.step()
        return [gradient.asnumpy().tobytes() for gradient in found]

    assert train(None) == train(make())
