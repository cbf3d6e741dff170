"""What differs while all that was computed from it agrees is no pair, and nobody is told of it as a difference; what
has an effect is named as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare.judge.status import DISSOLVED
from tensorprobe.compare.result import Comparison
from tests.compare.recording import Recording

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
W = RNG.standard_normal((8, 8)).astype(np.float32)
TASKS = pytest.mark.parametrize("task", ["statistics", "tensor"])


def compare(tmp_path: Path, program: Any, task: str = "statistics", level: str = "L1", **edit: Any) -> Comparison:
    runs = Recording(task, level), Recording(task, level)
    program(runs[0])
    program(runs[1], **edit)
    paths = [run.write(tmp_path / name) for run, name in zip(runs, "rc", strict=True)]
    return tensorprobe.compare(*paths, by="growth")


def shifted(run: Recording, shift: float = 0.0, effect: float = 0.0) -> None:
    """A softmax takes back what was added to all of its input."""
    scores = run.api("Functional.linear", run.data(X), run.data(W, requires_grad=True), output=X @ W.T)
    moved = run.api("Tensor.add", scores, shift * 0.0, output=scores.array + np.float32(shift))
    weights = np.exp(scores.array) / np.exp(scores.array).sum(-1, keepdims=True)
    result = run.api("Functional.softmax", moved, output=weights + np.float32(effect))
    run.api("Torch.sum", result, output=result.array.sum())


def reasons(result: Comparison) -> dict[str, str]:
    values = [(call.name, value) for rank in result.ranks for call in rank.calls for value in call.values]
    return {f"{name}.{value.slot}": value.reason for name, value in values if value.reason}


@TASKS
def test_a_value_that_differs_while_all_that_is_computed_from_it_agrees_is_no_alarm(tmp_path: Path, task: str) -> None:
    result = compare(tmp_path, shifted, task, shift=3.0)
    assert result and result.verdict.kind == "agree"
    assert "2 values differ, with no effect on the results" in result.verdict.headline
    assert not result.ranks[0].others
    assert {call.role for call in result.ranks[0].calls} == {"clean"}


def test_the_table_says_why_such_a_value_was_left_out(tmp_path: Path) -> None:
    result = compare(tmp_path, shifted, shift=3.0)
    assert reasons(result) == {
        "Tensor.add.0.forward.output.0": DISSOLVED,
        "Functional.softmax.0.forward.input.0": DISSOLVED,
    }
    rows = [row for row in result.rows if row.reason == DISSOLVED]
    assert [row.status for row in rows] == ["not comparable"] * 2


@TASKS
def test_the_same_difference_is_named_where_it_has_an_effect(tmp_path: Path, task: str) -> None:
    result = compare(tmp_path, shifted, task, shift=3.0, effect=0.01)
    assert (result.verdict.kind, result.verdict.call.name) == ("source", "Tensor.add.0.forward")  # type: ignore[union-attr]


def test_a_wrong_pair_is_not_named_in_the_place_of_the_call_that_is_wrong(tmp_path: Path) -> None:
    def program(run: Recording, shift: float = 0.0, wrong: float = 0.0) -> None:
        shifted(run, shift)
        y = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
        run.api("Functional.relu", y, output=np.maximum(y.array, 0) + np.float32(wrong))

    result = compare(tmp_path, program, shift=3.0, wrong=0.1)
    assert (result.verdict.kind, result.verdict.call.name) == ("source", "Functional.relu.0.forward")  # type: ignore[union-attr]
    assert not result.ranks[0].others


def backward(run: Recording, shift: float = 0.0, gradient: float = 0.0) -> None:
    """The gradient of the scores depends on what was saved; `gradient` is the effect that it has."""
    shifted(run, shift)
    grad = np.ones_like(X)
    back = run.backward("Functional.softmax.0", run.data(grad), grad + np.float32(gradient))
    back = run.backward("Tensor.add.0", back, back.array)
    run.backward("Functional.linear.0", back, [back.array @ W, back.array.T @ X])


@pytest.mark.parametrize(("gradient", "kind"), [(0.0, "agree"), (0.01, "source")])
def test_a_gradient_that_differs_is_an_effect(tmp_path: Path, gradient: float, kind: str) -> None:
    result = compare(tmp_path, backward, shift=3.0, gradient=gradient)
    assert result.verdict.kind == kind


def test_what_no_recorded_call_takes_is_a_result_and_is_judged(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) + np.float32(wrong))

    assert compare(tmp_path, program, wrong=0.1).verdict.kind == "source"


def test_what_a_call_without_a_partner_takes_is_judged(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        y = run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) + np.float32(wrong))
        run.api("Torch.sigmoid", y, output=1 / (1 + np.exp(-np.maximum(X, 0))))
        if wrong:
            run.api("Torch.cumsum", y, 0, output=np.cumsum(y.array, 0))

    assert compare(tmp_path, program, wrong=0.1).verdict.kind == "source"


@pytest.mark.parametrize(("effect", "kind"), [(0.0, "agree"), (0.01, "unequal start")])
def test_parameters_that_differ_without_an_effect_are_no_unequal_start(
    tmp_path: Path, effect: float, kind: str
) -> None:
    def program(run: Recording, unused: float = 0.0, effect: float = 0.0) -> None:
        table = np.vstack([W, W[:1] + np.float32(unused)])
        weight = run.data(table, requires_grad=True)
        run.api("Functional.embedding", run.data(np.arange(8)), weight, output=W + np.float32(effect))

    assert compare(tmp_path, program, unused=2.0, effect=effect).verdict.kind == kind


@pytest.mark.parametrize(("effect", "kind"), [(0.0, "agree"), (0.05, "source")])
def test_what_a_module_returns_that_is_inside_no_other_counts_as_an_effect(
    tmp_path: Path, effect: float, kind: str
) -> None:
    def program(run: Recording, shift: float = 0.0, effect: float = 0.0) -> None:
        x = run.data(X)
        with run.module("", "Model", x) as model:
            with run.module("inner", "Shift", x) as inner:
                inner.output = X + np.float32(shift)
            with run.module("head", "Norm", inner.output) as head:
                head.output = X + np.float32(effect)
            model.output = head.output

    assert compare(tmp_path, program, level="L0", shift=3.0, effect=effect).verdict.kind == kind


@pytest.mark.parametrize(("effect", "kind"), [(0.0, "agree"), (0.05, "source")])
def test_the_gradient_of_a_parameter_counts_as_an_effect_where_only_modules_were_recorded(
    tmp_path: Path, effect: float, kind: str
) -> None:
    def program(run: Recording, shift: float = 0.0, effect: float = 0.0) -> None:
        x = run.data(X)
        with run.module("", "Model", x) as model:
            with run.module("inner", "Shift", x) as inner:
                inner.output = X + np.float32(shift)
            weight = {"weight": run.data(W, requires_grad=True)}
            with run.module("head", "Norm", inner.output, parameters=weight) as head:
                head.output = X * 1
            model.output = head.output
        run.parameters_grad("Module.head.Norm", weight=W + np.float32(effect))

    result = compare(tmp_path, program, level="L0", shift=3.0, effect=effect)
    assert result.verdict.kind == kind
    assert not effect or result.verdict.call.name == "Module.inner.Shift.forward.0"  # type: ignore[union-attr]


def test_a_step_after_one_with_a_wrong_pair_is_not_excused(tmp_path: Path) -> None:
    def write(name: str, shift: float, wrong: float) -> Path:
        for step in range(2):
            run = Recording("statistics", "L1")
            shifted(run, shift if step == 0 else 0.0, wrong if step else 0.0)
            run.write(tmp_path / name, step=step)
        return tmp_path / name

    result = tensorprobe.compare(write("r", 0.0, 0.0), write("c", 3.0, 0.01), by="growth")
    assert result.verdict.kind == "source" and result.verdict.step == 1


def test_a_difference_that_goes_into_a_call_whose_result_was_not_recorded_is_named(tmp_path: Path) -> None:
    def program(run: Recording, factor: float = 1.0) -> None:
        y = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
        z = run.api("Torch.tanh", y, output=np.tanh(y.array) * np.float32(factor))
        run.api("Tensor.mean", z, output=None)

    result = compare(tmp_path, program, factor=1.1)
    assert (result.verdict.kind, result.verdict.call.name) == ("source", "Torch.tanh.0.forward")  # type: ignore[union-attr]
