"""A PyTorch run against a MindSpore run of the same program: what the frameworks do otherwise is no difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tests.cli.command import run_here
from tests.compare.recording import Recording, Traced
from tests.compare.two_frameworks import BIAS, RNG, Program, V, W, X, Y, call_named, compared, linear, lonely, pairs


def between(*passing: tuple[str, dict[str, Any]]) -> Program:
    """Two linear layers, and calls between them that return what they were given."""

    def program(run: Recording) -> None:
        y = linear(run, run.data(X))
        for stem, options in passing:
            y = run.api(stem, y, output=y.array.copy(), **options)
        linear(run, y, V)

    return program


PLAIN = between()


# ------------------------------------------------------------------------------------- calls that need no partner


@pytest.mark.parametrize(
    ("stem", "framework"),
    [
        ("Tensor.astype", "mindspore"),
        ("Functional.dropout", "mindspore"),
        ("Tensor.contiguous", "mindspore"),
        ("Functional.reshape", "mindspore"),
    ],
)
def test_a_call_that_returns_what_it_got_needs_no_partner(tmp_path: Path, stem: str, framework: str) -> None:
    found = compared(tmp_path, PLAIN, between((stem, {})), framework=framework)

    assert found and not lonely(found)
    assert found.ranks[0].coverage.share == 1.0
    assert found.ranks[0].coverage.idle_candidate == 1


def test_inside_one_framework_the_same_call_was_put_in_by_somebody(tmp_path: Path) -> None:
    found = compared(tmp_path, PLAIN, between(("Tensor.contiguous", {})), framework="pytorch")

    assert lonely(found) == ["Tensor.contiguous.0.forward"]


@pytest.mark.parametrize(
    "change",
    [lambda y: y[::-1].copy(), lambda y: y * np.float32(1.01), lambda y: y.astype(np.float16)],
    ids=["another order", "a scale", "another dtype"],
)
def test_a_call_that_changes_anything_does(tmp_path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    def program(run: Recording) -> None:
        y = linear(run, run.data(X))
        y = run.api("Tensor.flip", y, output=change(y.array))
        linear(run, y, V)

    found = compared(tmp_path, PLAIN, program)

    assert not found
    assert lonely(found) == ["Tensor.flip.0.forward"]


def test_a_call_that_ends_a_gradient_changes_something(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        y = linear(run, run.data(X))
        y.requires_grad = True
        linear(run, run.api("Tensor.copy", y, output=y.array.copy()), V)

    assert lonely(compared(tmp_path, PLAIN, program)) == ["Tensor.copy.0.forward"]


def test_a_result_that_nobody_uses_needs_no_partner(tmp_path: Path) -> None:
    def program(run: Recording) -> None:
        y = linear(run, run.data(X))
        total = run.api("Tensor.sum", y, output=y.array.sum(0))
        run.api("Tensor.__truediv__", total, 4, output=total.array / 4)
        linear(run, y, V)

    found = compared(tmp_path, PLAIN, program)

    assert found and not lonely(found)
    assert {one.why for one in found.ranks[0].only_candidate} == {"nothing uses its result"}


def test_a_module_stands_for_the_function_that_it_calls(tmp_path: Path) -> None:
    def function(run: Recording) -> None:
        y = linear(run, run.data(X))
        linear(run, run.api("Functional.relu", y, output=np.maximum(y.array, 0)), V)

    def module(run: Recording) -> None:
        y = linear(run, run.data(X))
        with run.module("act", "ReLU", y) as call:
            call.output = run.api("Primitive.relu.ReLU", y, output=np.maximum(y.array, 0))
        linear(run, call.output, V)

    found = compared(tmp_path, function, module)

    assert found and not lonely(found)
    assert pairs(found)["Functional.relu.0"] == "Primitive.relu.ReLU.0"


def test_counting_batches_is_not_adding_a_bias(tmp_path: Path) -> None:
    def reference(run: Recording) -> None:
        y = linear(run, run.data(X))
        run.api("Tensor.add_", run.data(np.int64(0)), 1, output=np.int64(1))
        linear(run, y, V)

    def candidate(run: Recording) -> None:
        y = run.api("Primitive.MatMul", run.data(X), run.data(W, requires_grad=True), output=X @ W.T - BIAS)
        y = run.api("Primitive.bias_add.BiasAdd", y, run.data(BIAS, requires_grad=True), output=X @ W.T)
        linear(run, y, V)

    assert pairs(compared(tmp_path, reference, candidate))["Functional.linear.0"] == (
        "Primitive.MatMul.0 + Primitive.bias_add.BiasAdd.0"
    )


# ------------------------------------------------------------------------------------- values and arguments


def test_labels_may_be_wider_in_one_framework(tmp_path: Path) -> None:
    def program(dtype: Any, shift: int = 0) -> Program:
        def run_it(run: Recording) -> None:
            labels = run.data((np.arange(4) + shift).astype(dtype))
            run.api("Functional.nll_loss", run.data(X), labels, output=np.float32(X[np.arange(4), labels.array].mean()))

        return run_it

    assert compared(tmp_path / "same", program(np.int64), program(np.int32))
    assert not compared(tmp_path / "other", program(np.int64), program(np.int32, shift=1))


def test_another_precision_is_a_difference_in_any_framework(tmp_path: Path) -> None:
    def program(dtype: Any) -> Program:
        return lambda run: run.api("Functional.relu", run.data(X), output=np.maximum(X, 0).astype(dtype))

    assert not compared(tmp_path, program(np.float32), program(np.float16))


def test_a_norm_may_return_its_mean_and_variance_too(tmp_path: Path) -> None:
    normal = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)

    def reference(run: Recording) -> None:
        run.api("Functional.layer_norm", run.data(X), output=normal)

    def candidate(run: Recording) -> None:
        run.api("Primitive.layer_norm.LayerNorm", run.data(X), output=[normal, X.mean(1), X.var(1)])

    assert compared(tmp_path, reference, candidate)


def test_operands_may_be_in_either_order_and_so_their_gradients(tmp_path: Path) -> None:
    def program(is_swapped: bool, wrong: float = 0.0) -> Program:
        def run_it(run: Recording) -> None:
            stem = "Tensor.mul" if run.framework == "pytorch" else "Functional.mul"
            one, other = linear(run, run.data(X)), linear(run, run.data(Y), V)
            noise = np.float32(1e-7 * is_swapped)  # two frameworks never agree in the last digit
            operands = (other, one) if is_swapped else (one, other)
            run.api(stem, *operands, output=one.array * other.array * (1 + noise))
            gradients = [operand.array + np.float32(wrong) for operand in operands[::-1]]
            run.backward(f"{stem}.0", run.data(np.ones_like(X)), gradients)

        return run_it

    found = compared(tmp_path / "same", program(False), program(True))
    assert found, found.verdict
    crossed = call_named(found, "Tensor.mul.0.forward")
    slots = {(value.reference.slot, value.candidate.slot) for value in crossed.values if value.is_input}
    assert slots == {("input.0", "input.1"), ("input.1", "input.0")}

    verdict = compared(tmp_path / "wrong", program(False), program(True, wrong=0.1)).verdict
    assert verdict.call is not None and verdict.call.name == "Tensor.mul.0.backward"


def test_operands_of_a_difference_may_not(tmp_path: Path) -> None:
    def program(is_swapped: bool) -> Program:
        def run_it(run: Recording) -> None:
            one, other = linear(run, run.data(X)), linear(run, run.data(Y), V)
            first, second = (other, one) if is_swapped else (one, other)
            run.api("Functional.sub", first, second, output=first.array - second.array)

        return run_it

    verdict = compared(tmp_path, program(False), program(True)).verdict
    assert verdict.call is not None and verdict.call.name == "Functional.sub.0.forward"


# ------------------------------------------------------------------------------------- modules and groups


def feed_forward(run: Recording, paths: tuple[str, str]) -> None:
    x = run.data(X)
    class_name = "Linear" if run.framework == "pytorch" else "Dense"
    with run.module("", "Network", x) as network:
        y = x
        for path, weight in zip(paths, (W, V), strict=True):
            with run.module(path, class_name, y, parameters={"weight": run.data(weight, True)}) as call:
                call.output = linear(run, y, weight)
            y = call.output
        network.output = y


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_sequential_that_only_one_run_has_is_stepped_over(tmp_path: Path, level: str) -> None:
    found = compared(
        tmp_path,
        lambda run: feed_forward(run, ("first", "second")),
        lambda run: feed_forward(run, ("ffn.0", "ffn.1")),
        level,
    )

    assert found
    assert pairs(found)["Module.first.Linear.forward.0"] == "Cell.ffn.0.Dense.forward.0"
    assert pairs(found)["Module.second.Linear.forward.0"] == "Cell.ffn.1.Dense.forward.0"


def embed(run: Recording, forgets: bool = False) -> None:
    """A table that is looked into, and a recurrent layer: one call each, or several."""
    index = run.data(np.array([[0, 3], [1, 2]]))
    rows = W[index.array]
    table = run.data(W, requires_grad=True)
    outer = rows @ V
    if run.framework == "pytorch":
        y = run.api("Functional.embedding", index, table, output=rows, module_path="embed")
        y = run.api("Torch.lstm", y, run.data(V, requires_grad=True), output=outer, module_path="lstm")
    else:
        flat = run.api("Primitive.Reshape", index, output=index.array.ravel(), module_path="embedding")
        y = run.api("Primitive.Gather", table, flat, output=W[flat.array], module_path="embedding")
        y = run.api("Primitive.Reshape", y, output=rows, module_path="embedding")
        if forgets:
            y = run.data(y.array)  # another object: nobody knows where it came from
        y = run.api("Primitive.Transpose", y, output=rows.swapaxes(0, 1), module_path="lstm")
        y = run.api("Primitive.LSTM", y, run.data(V, True), output=y.array @ V, module_path="lstm.rnn")
        y = run.api("Primitive.Transpose", y, output=outer, module_path="lstm")
    run.api("Functional.tanh", y, output=np.tanh(outer), module_path="")


@pytest.mark.parametrize("forgets", [False, True])
def test_fused_calls_are_groups_also_where_a_source_was_lost(tmp_path: Path, forgets: bool) -> None:
    found = compared(tmp_path, embed, lambda run: embed(run, forgets), level="L1")

    assert found and not lonely(found)
    assert pairs(found)["Functional.embedding.0"] == "Primitive.Reshape.0 + Primitive.Gather.0 + Primitive.Reshape.1"
    assert pairs(found)["Torch.lstm.0"] == "Primitive.Transpose.0 + Primitive.LSTM.0 + Primitive.Transpose.1"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_evidence_says_which_default_of_a_layer_differs(tmp_path: Path, level: str) -> None:
    def program(wrong: float = 0.0) -> Program:
        def run_it(run: Recording) -> None:
            x = run.data(X)
            with run.module("act", "GELU", x) as call:
                call.output = run.api("Functional.gelu", x, output=np.maximum(X, 0) + np.float32(wrong))

        return run_it

    evidence = compared(tmp_path / "wrong", program(), program(0.01), level).verdict.evidence
    in_one = compared(tmp_path / "one", program(), program(0.01), level, framework="pytorch").verdict.evidence

    assert "by default nn.GELU of MindSpore has approximate='tanh', PyTorch 'none'" in evidence
    assert not [line for line in in_one if line.startswith("by default")]


def test_a_module_that_is_called_twice_may_be_two(tmp_path: Path) -> None:
    def program(*paths: str) -> Program:
        def run_it(run: Recording) -> None:
            y = run.data(X)
            with run.module("", "Network", y) as network:
                for path, place in zip(paths, ("first", "second"), strict=True):
                    class_name = "Linear" if run.framework == "pytorch" else "Dense"
                    with run.module(place, class_name, y, parameters={"weight": run.data(W, True)}) as call:
                        call.output = y = linear(run, y)
                    with run.module(path, "Tanh", y) as call:
                        call.output = y = run.api("Functional.tanh", y, output=np.tanh(y.array))
                network.output = y

        return run_it

    found = compared(tmp_path, program("act1", "act2"), program("act", "act"), "L0")

    assert found and not lonely(found)
    assert pairs(found)["Module.act2.Tanh.forward.0"] == "Cell.act.Tanh.forward.1"


def test_a_split_here_may_be_two_slices_there(tmp_path: Path) -> None:
    def split(run: Recording) -> None:
        y = linear(run, run.data(X))
        one, other = run.api("Tensor.chunk", y, 2, output=[y.array[:, :3], y.array[:, 3:]])
        join(run, one, other)

    def slices(run: Recording) -> None:
        y = linear(run, run.data(X))
        other = run.api("Tensor.__getitem__", y, output=y.array[:, 3:])
        one = run.api("Tensor.__getitem__", y, output=y.array[:, :3])
        join(run, one, other)

    def join(run: Recording, one: Traced, other: Traced) -> None:
        negative = run.api(
            "Functional.neg" if run.framework == "mindspore" else "Torch.neg", other, output=-other.array
        )
        both = np.concatenate([negative.array, one.array], 1)
        run.api("Functional.cat" if run.framework == "mindspore" else "Torch.cat", negative, one, output=both)

    found = compared(tmp_path, split, slices)

    assert found, found.verdict
    assert not lonely(found)
    chunk = call_named(found, "Tensor.chunk.0.forward")
    assert len(chunk.candidate) == 2
    assert {value.status for value in chunk.values if not value.is_input} == {"equal"}


def test_a_layer_of_many_steps_is_one_group(tmp_path: Path) -> None:
    def fused(run: Recording) -> None:
        x = linear(run, run.data(X))
        y = x.array
        for _ in range(100):
            y = np.tanh(y)
        linear(run, run.api("Torch.rnn_tanh", x, output=y), V)

    def unrolled(run: Recording) -> None:
        y = linear(run, run.data(X))
        for _ in range(100):
            y = run.api("Functional.tanh", y, output=np.tanh(y.array))
        linear(run, y, V)

    found = compared(tmp_path, fused, unrolled)

    assert found and not lonely(found)
    assert len(call_named(found, "Torch.rnn_tanh.0.forward").candidate) == 100


@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_the_weight_of_a_conv1d_may_have_a_dimension_more(tmp_path: Path, wrong: float) -> None:
    weight = RNG.standard_normal((6, 4, 3)).astype(np.float32)

    def program(run: Recording) -> None:
        x = run.data(X)
        own = weight if run.framework == "pytorch" else weight[:, :, None] + np.float32(wrong)
        with run.module("conv", "Conv1d", x, parameters={"weight": run.data(own, requires_grad=True)}) as call:
            scale = np.float32(own.sum() / weight.sum())
            call.output = run.api("Functional.relu", x, output=np.maximum(X, 0) * scale)

    found = compared(tmp_path, program, program, "L0")

    assert found.verdict.kind == ("unequal start" if wrong else "agree")


def test_a_mask_may_be_made_outside_of_the_layer_that_uses_it(tmp_path: Path) -> None:
    mask = np.triu(np.full((6, 6), -1e4, np.float32), 1)
    mixed = np.tanh(X @ W.T) @ np.exp(mask)

    def outside(run: Recording) -> None:
        x = run.api("Functional.relu", run.data(X), output=X, module_path="")
        full = run.api("Torch.full", 6, output=np.full((6, 6), -1e4, np.float32), module_path="")
        made = run.api("Torch.triu", full, output=mask, module_path="")
        y = run.api("Functional.multi_head_attention_forward", x, made, output=mixed, module_path="attn")
        run.api("Functional.gelu", y, output=mixed * 2, module_path="")

    def inside(run: Recording) -> None:
        x = run.api("Functional.relu", run.data(X), output=X, module_path="")
        y = run.api("Functional.tanh", x, output=np.tanh(X @ W.T), module_path="attention")
        y = run.api("Functional.matmul", y, run.data(np.exp(mask)), output=mixed, module_path="attention")
        run.api("Functional.gelu", y, output=mixed * 2, module_path="")

    found = compared(tmp_path, outside, inside, "L1")

    assert found and not lonely(found)
    assert "Torch.full.0 + Torch.triu.0 + Functional.multi_head_attention_forward.0" in pairs(found)


# ------------------------------------------------------------------------------------- what is printed


def test_what_needs_no_partner_is_counted_and_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared(tmp_path, PLAIN, between(("Tensor.astype", {})))

    found = run_here(capsys, "compare", tmp_path / "reference", tmp_path / "candidate")

    assert found.returncode == 0
    assert "0 of the reference and 1 of the candidate need no partner" in found.stdout
    assert "\n  no partner" not in found.stdout


def test_of_the_settings_only_those_that_both_frameworks_have_are_compared(tmp_path: Path) -> None:
    runs = Recording(), Recording(framework="mindspore")
    for run, settings in zip(
        runs, ({"autocast": False, "threads": 1}, {"mode": "PYNATIVE_MODE", "threads": 2}), strict=True
    ):
        PLAIN(run)
        run.run |= {"framework": run.framework, "settings": settings, "devices": ["cpu"]}
    runs[1].run["devices"] = ["CPU"]

    found = tensorprobe.compare(runs[0].write(tmp_path / "reference"), runs[1].write(tmp_path / "candidate"))

    keys = [key for key, _, _ in found.ranks[0].circumstances]
    assert keys == ["framework", "versions.torch", "versions.mindspore", "settings.threads"]
