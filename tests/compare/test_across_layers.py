"""Layers that one framework computes in other calls, in other shapes or with another end than the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.measure.shape import is_laid_out_alike
from tensorprobe.compare.result import Comparison
from tests.compare.recording import Recording, Traced
from tests.compare.two_frameworks import BIAS, RNG, Program, V, W, X, call_named, compared, linear, lonely, pairs

DEEP = RNG.standard_normal((2, 3, 6)).astype(np.float32)


def spelt(run: Recording, pytorch: str, mindspore: str) -> str:
    return pytorch if run.framework == "pytorch" else mindspore


def dense(run: Recording, x: Traced, weight: np.ndarray, bias: np.ndarray = BIAS, **options: Any) -> Traced:
    """A linear layer in the calls of each framework; MindSpore's works on rows."""
    parameters = run.data(weight, requires_grad=True), run.data(bias, requires_grad=True)
    if run.framework == "pytorch":
        return run.api("Functional.linear", x, *parameters, output=x.array @ weight.T + bias, **options)
    rows = x.array.reshape(-1, weight.shape[1])
    y = run.api("Primitive.Reshape", x, output=rows, **options)
    y = run.api("Primitive.MatMul", y, parameters[0], output=rows @ weight.T, **options)
    y = run.api("Primitive.BiasAdd", y, parameters[1], output=y.array + bias, **options)
    return run.api("Primitive.Reshape", y, output=y.array.reshape(*x.array.shape[:-1], -1), **options)


# ------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("shape", "other", "is_alike"),
    [
        ((3, 12, 32), (36, 32), True),
        ((4, 128), (4, 8, 4, 4), True),
        ((), (1,), True),
        ((0, 3), (0,), True),
        ((3, 4), (4, 3), False),
        ((2, 3, 4), (3, 8), False),
        ((2, 3), (2,), False),
        ((2, 1), (2, 2), False),
        (None, (2,), False),
    ],
)
def test_dimensions_that_are_joined_or_split_keep_the_order_of_the_elements(
    shape: tuple[int, ...] | None, other: tuple[int, ...], is_alike: bool
) -> None:
    assert is_laid_out_alike(shape, other) is is_laid_out_alike(other, shape) is is_alike


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("wrong", [0.0, 0.01])
def test_rows_of_one_framework_are_all_dimensions_of_the_other(tmp_path: Path, level: str, wrong: float) -> None:
    def program(run: Recording) -> None:
        x = run.data(DEEP if run.framework == "pytorch" else DEEP.reshape(6, 6) + np.float32(wrong))
        with run.module("act", "Tanh", x) as call:
            call.output = run.api("Functional.tanh", x, output=np.tanh(x.array))

    found = compared(tmp_path, program, program, level)

    assert bool(found) is not wrong
    assert {value.status for call in found.ranks[0].calls for value in call.values} == {
        "different" if wrong else "equal"
    }


def test_inside_one_framework_another_shape_is_a_difference(tmp_path: Path) -> None:
    def program(x: np.ndarray) -> Program:
        return lambda run: run.api("Functional.tanh", run.data(x), output=np.tanh(x))

    assert not compared(tmp_path, program(DEEP), program(DEEP.reshape(6, 6)), framework="pytorch")


@pytest.mark.parametrize("sizes", [(2, 6), (-1, 6)])
def test_a_size_is_said_by_the_result(tmp_path: Path, sizes: tuple[int, int]) -> None:
    row = X[:1]

    def program(run: Recording) -> None:
        x = run.api("Functional.relu", run.data(row), output=row)
        noise = np.float32(1e-7 * (run.framework == "mindspore"))
        wanted = (-1, 6) if run.framework == "pytorch" else sizes
        run.api("Tensor.expand", x, *wanted, output=np.repeat(row, 2, 0) * (1 + noise))

    assert compared(tmp_path, program, program)


# ------------------------------------------------------------------------------------- groups


def test_a_bias_that_is_added_by_the_next_call_belongs_to_the_product(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        weight, bias = run.data(W, requires_grad=True), run.data(BIAS, requires_grad=True)
        if run.framework == "pytorch":
            y = run.api("Functional.conv2d", run.data(X), weight, bias, output=X @ W + BIAS, module_path="patch")
            y = run.api("Tensor.flatten", y, output=y.array, module_path="")
        else:
            y = run.api("Primitive.Conv2D", run.data(X), weight, output=X @ W, module_path="patch")
            y = run.api("Primitive.BiasAdd", y, bias, output=X @ W + BIAS + np.float32(wrong), module_path="patch")
            y = run.api("Functional.gather_elements", y, output=y.array, module_path="")
        y = run.api(spelt(run, "Tensor.t", "Functional.swapaxes"), y, output=y.array.T, module_path="")
        run.api("Functional.tanh", y, output=np.tanh(y.array), module_path="")

    found = compared(tmp_path / "same", program, program, "L1")
    assert found, found.verdict
    assert pairs(found)["Functional.conv2d.0"] == "Primitive.Conv2D.0 + Primitive.BiasAdd.0"

    verdict = compared(tmp_path / "wrong", program, lambda run: program(run, 0.1), "L1").verdict
    assert verdict.call is not None and verdict.call.reference[0].name == "Functional.conv2d.0.forward"


def test_a_cast_outside_of_a_layer_does_not_take_it_out_of_its_module(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        y = run.api("Functional.tanh", run.data(DEEP), output=np.tanh(DEEP), module_path="")
        y = dense(run, y, W, module_path="head")
        if run.framework == "mindspore":
            y = run.api("Tensor.astype", y, output=y.array.copy(), module_path="")
        run.api("Functional.relu", y, output=np.maximum(y.array, 0), module_path="")

    found = compared(tmp_path, program, program, "L1")

    assert found and not lonely(found)
    assert pairs(found)["Functional.linear.0"].startswith("Primitive.Reshape.0 + Primitive.MatMul.0")


def test_numbers_that_are_made_from_nothing_are_a_group_too(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        places = np.arange(6)
        if run.framework == "pytorch":
            y = run.api("Torch.arange", 6, output=places.astype(np.float32))
        else:
            y = run.api("Functional.arange", 6, output=places)
            y = run.api("Tensor.astype", y, output=places.astype(np.float32))
        run.api(spelt(run, "Torch.cos", "Functional.cos"), y, output=np.cos(y.array))

    found = compared(tmp_path, program, program, "L1")

    assert found and not lonely(found)
    assert pairs(found)["Torch.arange.0"] == "Functional.arange.0 + Tensor.astype.0"


def decode(run: Recording, steps: int, wrong: int | None = None) -> None:
    """A cell and a linear layer in turns: nothing between them has the same name in both frameworks."""
    h, weight = run.api("Functional.tanh", run.data(X), output=X, module_path=""), run.data(V, requires_grad=True)
    results = []
    for step in range(steps):
        result = np.tanh(h.array @ V + np.float32(step == wrong))
        if run.framework == "pytorch":
            h = run.api("Torch.rnn_tanh_cell", h, weight, output=result, module_path="cell")
        else:
            h = run.api("Primitive.MatMul", h, weight, output=h.array @ V, module_path="cell")
            h = run.api("Primitive.Tanh", h, output=result, module_path="cell")
        results.append(dense(run, h, W, module_path="out"))
    stacked = np.stack([result.array for result in results])
    run.api(spelt(run, "Torch.stack", "Functional.stack"), *results, output=stacked, module_path="")


def test_each_call_of_a_layer_is_a_group_of_its_own(tmp_path: Path) -> None:
    steps = 24  # all of them as one group would be too many
    found = compared(tmp_path / "same", lambda run: decode(run, steps), lambda run: decode(run, steps), "L1")

    assert found and not lonely(found)
    assert pairs(found)["Torch.rnn_tanh_cell.7"] == "Primitive.MatMul.14 + Primitive.Tanh.7"

    found = compared(tmp_path / "wrong", lambda run: decode(run, steps), lambda run: decode(run, steps, 7), "L1")
    assert found.verdict.call is not None and found.verdict.call.name == "Torch.rnn_tanh_cell.7.forward"


def test_a_layer_with_two_results_that_are_both_used(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        x = run.api("Functional.relu", run.data(DEEP), output=DEEP, module_path="")
        states = np.tanh(DEEP)
        if run.framework == "pytorch":
            states, last = run.api("Torch.gru", x, output=[states, states[:, -1]], module_path="gru")
        else:
            turned = run.api("Primitive.Transpose", x, output=DEEP.swapaxes(0, 1), module_path="gru")
            turned = run.api("Primitive.Tanh", turned, output=np.tanh(turned.array), module_path="gru.rnn")
            last = run.api("Primitive.Slice", turned, output=turned.array[-1], module_path="gru")
            states = run.api("Primitive.Transpose", turned, output=states, module_path="gru")
        run.api("Functional.softmax", states, output=np.exp(states.array), module_path="")
        run.api("Functional.sigmoid", last, output=np.exp(last.array), module_path="")

    found = compared(tmp_path, program, program, "L1")

    assert found and not lonely(found)
    results = [value for value in call_named(found, "Torch.gru.0.forward").values if not value.is_input]
    assert [value.status for value in results] == ["equal", "equal"]


@pytest.mark.parametrize("has_view", [False, True])
def test_what_lies_between_two_layers_is_a_group_too(tmp_path: Path, has_view: bool) -> None:
    """Outside of all layers, and in a layer that has no parameters."""

    def program(run: Recording) -> None:
        y = dense(run, run.data(DEEP), W, module_path="up")
        if has_view and run.framework == "mindspore":
            y = run.api("Tensor.view", y, output=y.array.copy(), module_path="")
        y = run.api(spelt(run, "Torch.hardtanh", "Primitive.HTanh"), y, output=np.tanh(y.array), module_path="act")
        y = run.api(spelt(run, "Torch.div", "Primitive.Mul"), y, output=y.array / 2, module_path="")
        y = dense(run, y, V, module_path="down")
        run.api("Functional.relu", y, output=np.maximum(y.array, 0), module_path="")

    found = compared(tmp_path, program, program, "L1")

    assert found and not lonely(found)
    assert pairs(found)["Torch.hardtanh.0"].endswith("Primitive.HTanh.0")
    assert pairs(found)["Torch.div.0"] == "Primitive.Mul.0"


def test_a_layer_is_not_joined_with_a_wrong_call_before_it(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        y = dense(run, run.data(DEEP), W, module_path="up")
        if run.framework == "pytorch":
            y = run.api("Functional.hardswish", y, output=np.tanh(y.array), module_path="")
            y = run.api("Functional.max_pool2d", y, output=y.array.max(2), module_path="pool")
        else:
            y = run.api("Functional.relu6", y, output=np.maximum(y.array, 0), module_path="")
            y = run.api("Primitive.MaxPoolWithMask", y, output=y.array.max(2, keepdims=True), module_path="pool")
            y = run.api("Primitive.Squeeze", y, output=y.array[..., 0], module_path="pool")
        run.api("Functional.relu", y, output=np.maximum(y.array, 0), module_path="")

    verdict = compared(tmp_path, program, program, "L1").verdict

    assert verdict.call is not None and verdict.call.name == "Functional.hardswish.0.forward"


def test_a_view_behind_a_wrong_call_is_not_blamed(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        y = run.api("Functional.tanh", run.data(DEEP), output=np.tanh(DEEP))
        wrong = spelt(run, "Functional.softplus", "Functional.relu6")
        y = run.api(wrong, y, output=np.exp(y.array) if run.framework == "pytorch" else y.array)
        y = run.api(spelt(run, "Tensor.unflatten", "Tensor.view"), y, output=y.array.reshape(6, 6))
        run.api("Functional.relu", y, output=np.maximum(y.array, 0))

    verdict = compared(tmp_path, program, program, "L1").verdict

    assert verdict.call is not None and verdict.call.name == "Functional.softplus.0.forward"


def test_a_layer_that_is_given_the_result_of_another_call_is_not_the_source(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        x = run.api("Functional.relu", run.data(DEEP), output=np.maximum(DEEP, 0), module_path="")
        if run.framework == "pytorch":  # the port has forgotten it
            x = run.api("Functional.tanh", x, output=np.tanh(x.array), module_path="")
        y = dense(run, x, W, module_path="score")
        run.api("Functional.softmax", y, output=np.exp(y.array), module_path="")

    verdict = compared(tmp_path, program, program, "L1").verdict

    assert verdict.call is not None and verdict.call.name == "Functional.tanh.0.forward"
    assert "the inputs are the same, but the results differ" in verdict.headline


def test_what_goes_into_a_group_may_be_rows(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        x = DEEP if run.framework == "pytorch" else DEEP.reshape(6, 6)
        x = run.api("Functional.tanh", run.data(x), output=np.tanh(x), module_path="")
        dense(run, Traced(x.array + np.float32(wrong), x.source), W, module_path="up")

    def given(found: Comparison) -> list[str]:
        values = call_named(found, "Functional.linear.0.forward").values
        return [value.status for value in values if value.slot == "input.0"]

    assert given(compared(tmp_path / "same", program, program, "L1")) == ["equal"]
    assert given(compared(tmp_path / "wrong", program, lambda run: program(run, 0.1), "L1")) == ["different"]


# ------------------------------------------------------------------------------------- modules


def activated(run: Recording, has_own: bool, shift: float = 0.0) -> None:
    """Two linear layers with an activation between them, which the first may contain: `Dense(…, activation=…)`."""
    x, class_name = run.data(X), spelt(run, "Linear", "Dense")
    with run.module("", "Network", x) as network:
        with run.module("up", class_name, x, parameters={"weight": run.data(W, True)}) as up:
            up.output = y = linear(run, x) if run.level != "L0" else run.data(X @ W.T)
            result = np.tanh(y.array + np.float32(shift))
            if has_own and run.level == "L0":
                with run.module("up.activation", "Tanh", y) as inner:
                    inner.output = run.data(result)
                up.output = run.data(result)
            elif has_own:
                up.output = run.api("Functional.tanh", y, output=result)
        y = up.output
        if not has_own:
            y = run.data(result) if run.level == "L0" else run.api("Functional.tanh", y, output=result)
        with run.module("down", class_name, y, parameters={"weight": run.data(V, True)}) as down:
            down.output = linear(run, y, V) if run.level != "L0" else run.data(y.array @ V.T)
        network.output = down.output


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_layer_may_contain_the_activation_that_follows_it_in_the_other_framework(tmp_path: Path, level: str) -> None:
    def reference(run: Recording) -> None:
        activated(run, has_own=False)

    found = compared(tmp_path / "same", reference, lambda run: activated(run, has_own=True), level)
    assert found, found.verdict
    up = call_named(found, "Module.up.Linear.forward.0")
    assert [value.reason for value in up.values if not value.is_input] == ["the two modules end at different calls"]

    verdict = compared(tmp_path / "wrong", reference, lambda run: activated(run, True, shift=0.1), level).verdict
    named = {"L0": "Module.Network.forward.0", "mix": "Functional.tanh.0.forward"}
    assert verdict.call is not None and verdict.call.name == named[level]


# ------------------------------------------------------------------------------------- data made inside the window


def test_a_tensor_that_only_pytorch_is_seen_to_make_of_data_is_data_in_both(tmp_path: Path) -> None:
    def reference(run: Recording) -> None:
        x = run.api("Torch.tensor", {"type": "list", "length": 24}, output=X)
        weights = run.data(W, requires_grad=True), run.data(BIAS)
        linear(run, run.api("Functional.linear", x, *weights, output=X @ W.T + BIAS), V)

    def candidate(run: Recording) -> None:
        y = run.api("Primitive.matmul.MatMul", run.data(X), run.data(W, requires_grad=True), output=X @ W.T)
        linear(run, run.api("Primitive.bias_add.BiasAdd", y, run.data(BIAS), output=y.array + BIAS), V)

    found = compared(tmp_path, reference, candidate)

    assert found and not lonely(found)
    assert pairs(found)["Functional.linear.0"] == "Primitive.matmul.MatMul.0 + Primitive.bias_add.BiasAdd.0"
    assert found.ranks[0].coverage.idle_reference == 1
