"""What `tensorprobe compare` and `show` say of MindSpore runs, without MindSpore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare.circumstance import NOT_REPEATED
from tensorprobe.compare.result import Comparison
from tests.cli.command import run_here
from tests.compare.recording import Recording

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
W = RNG.standard_normal((8, 8)).astype(np.float32)
GAMMA, BETA = (RNG.standard_normal(8).astype(np.float32) for _ in range(2))

IN_NN = {
    "dense": ("Dense", "Functional.dense", ("weight",)),
    "norm": ("LayerNorm", "Primitive.layer_norm.LayerNorm", ("gamma", "beta")),
    "act": ("ReLU", "Functional.relu"),
    "sum": "Functional.reduce_sum",
}
IN_MINT = {
    "dense": ("Linear", "MintFunctional.linear", ("weight",)),
    "norm": ("LayerNorm", "MintFunctional.layer_norm", ("weight", "bias")),
    "act": ("ReLU", "MintFunctional.relu"),
    "sum": "Mint.sum",
}


def network(run: Recording, words: dict[str, Any] = IN_NN, wrong: float = 0.0, gamma: np.ndarray = GAMMA) -> None:
    """dense, norm, relu (to which `wrong` is added) and a sum, in the words of nn and ops or of mint."""
    x, w = run.data(X), run.data(W, requires_grad=True)
    name, api, parameters = words["dense"]
    with run.module("fc", name, x, parameters={parameters[0]: w}) as call:
        call.output = y = run.api(api, x, w, output=X @ W.T)
    scale, shift = run.data(gamma, requires_grad=True), run.data(BETA, requires_grad=True)
    name, api, parameters = words["norm"]
    with run.module("norm", name, y, parameters={parameters[0]: scale, parameters[1]: shift}) as call:
        normal = (y.array - y.array.mean(1, keepdims=True)) / y.array.std(1, keepdims=True) * gamma + BETA
        shape = [] if api.startswith("Primitive") else [[8]]  # a primitive is made with it
        call.output = y = run.api(api, y, *shape, scale, shift, output=normal.astype(np.float32))
    name, api = words["act"]
    with run.module("act", name, y) as call:
        call.output = y = run.api(api, y, output=np.maximum(y.array, 0) + np.float32(wrong))
    run.api(words["sum"], y, output=y.array.sum(0))


def compared(tmp_path: Path, reference: Recording, candidate: Recording) -> Comparison:
    return tensorprobe.compare(reference.write(tmp_path / "r"), candidate.write(tmp_path / "c"))


def recorded(task: str = "tensor", level: str = "mix", **edit: Any) -> Recording:
    run = Recording(task, level, framework="mindspore")
    network(run, **edit)
    return run


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_two_runs_of_mindspore_agree_or_part_at_the_wrong_call(tmp_path: Path, task: str, level: str) -> None:
    assert compared(tmp_path / "same", recorded(task, level), recorded(task, level)).verdict.kind == "agree"

    verdict = compared(tmp_path / "wrong", recorded(task, level), recorded(task, level, wrong=0.01)).verdict

    assert (verdict.kind, verdict.call and verdict.call.name) == ("source", "Functional.relu.0.forward")


def test_that_the_bits_may_not_repeat_is_said_where_they_differ_and_only_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [recorded(), recorded(), recorded(wrong=1e-7)]
    for run in runs:
        run.run |= {"framework": "mindspore", "devices": ["CPU"], "settings": {"threads_num_is_set": False}}
    reference, same, other = runs

    assert compared(tmp_path / "same", reference, same).ranks[0].notes == ()
    assert compared(tmp_path / "other", reference, other).ranks[0].notes == (NOT_REPEATED,)
    said = run_here(capsys, "compare", tmp_path / "other" / "r", tmp_path / "other" / "c").stdout
    assert f"  circumstances {NOT_REPEATED}\n" in said


def test_a_model_of_nn_and_the_same_of_mint_are_one_model(tmp_path: Path) -> None:
    result = compared(tmp_path, recorded(), recorded(words=IN_MINT))

    assert result, result.verdict
    assert not result.ranks[0].only_reference and not result.ranks[0].only_candidate
    slots = {
        (value.reference.slot, value.candidate.slot)
        for call in result.ranks[0].calls
        for value in call.values
        if value.reference is not None and value.candidate is not None
    }
    assert {("parameters.gamma", "parameters.weight"), ("parameters.beta", "parameters.bias")} <= slots
    assert compared(tmp_path / "w", recorded(), recorded(words=IN_MINT, wrong=0.1)).verdict.kind == "source"


def test_a_gamma_that_differs_from_the_start_is_named(tmp_path: Path) -> None:
    verdict = compared(tmp_path, recorded(), recorded(gamma=GAMMA * np.float32(1.01))).verdict

    assert verdict.kind == "unequal start"
    assert "norm.gamma" in verdict.headline


def test_a_run_of_pytorch_is_paired_with_one_of_mindspore_by_its_words(tmp_path: Path) -> None:
    in_torch = {**IN_MINT, "dense": ("Linear", "Functional.linear", ("weight",)), "sum": "Tensor.sum"}
    in_torch |= {"norm": ("LayerNorm", "Functional.layer_norm", ("weight", "bias")), "act": ("ReLU", "Torch.relu")}
    reference = Recording(level="mix")
    network(reference, in_torch)

    result = compared(tmp_path, reference, recorded())

    assert result, result.verdict
    assert not result.ranks[0].only_reference and not result.ranks[0].only_candidate


def test_bfloat16_is_compared_without_loss(tmp_path: Path) -> None:
    """numpy writes it as two nameless bytes; the record says what they are."""
    low = X.astype(ml_dtypes.bfloat16)

    def record(step: int) -> Recording:
        run = Recording(framework="mindspore")
        other = low.copy()
        other.view(np.uint16)[0, 0] += step
        run.api("Mint.mul", run.data(low), run.data(low), output=other)
        return run

    assert compared(tmp_path / "same", record(0), record(0)).verdict.headline.endswith("bit for bit.")
    result = compared(tmp_path / "ulp", record(0), record(1))
    value = next(value for call in result.ranks[0].calls for value in call.values if not value.is_input)
    assert value.measurement is not None
    assert (value.measurement.basis, value.measurement.max_ulp) == ("tensor", 1)


def test_a_cell_wrapped_for_training_is_the_same_cell(tmp_path: Path) -> None:
    def record(around: str) -> Recording:
        run = Recording(level="mix", framework="mindspore")
        x, w = run.data(X), run.data(W, requires_grad=True)
        with run.module(f"{around}fc", "Dense", x, parameters={"weight": w}) as call:
            call.output = run.api("Functional.dense", x, w, output=X @ W.T)
        return run

    result = compared(tmp_path, record(""), record("network._backbone."))

    assert result, result.verdict
    assert [call.rule for call in result.ranks[0].calls] == ["same name", "wrapper"]


def leaf(value: float, *shape: int) -> dict[str, Any]:
    """As msprobe 26.2.0 writes it: no requires_grad, no counts, no source."""
    numbers = {"Max": value, "Min": -value, "Mean": value / 7, "Norm": 3 * value}
    return {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(shape), **numbers}


def write_msprobe_dump(folder: Path, relu: float = 1.25) -> Path:
    def forward(inputs: list[Any], output: Any, **more: Any) -> dict[str, Any]:
        return {"input_args": inputs, "input_kwargs": {}, "output": [output], **more}

    x, y, z = leaf(1.5, 2, 3), leaf(2.5, 2, 4), leaf(relu, 2, 4)
    weight = {"weight": leaf(0.5, 4, 3), "bias": leaf(0.25, 4)}
    data = {
        "Mint.matmul.0.forward": forward([x, leaf(0.5, 3, 4)], y),
        "Cell.fc.Dense.forward.0": forward([x], y, parameters=weight),
        "Primitive.relu.ReLU.0.forward": forward([y], z),
        "Tensor.__add__.0.forward": forward([z, {"type": "int", "value": 1}], leaf(relu + 1, 2, 4)),
        "Primitive.relu.ReLU.0.backward": {"input": [leaf(0.125, 2, 4)], "output": [leaf(0.125, 2, 4)]},
        "Cell.fc.Dense.backward.0": {"input": [leaf(0.125, 2, 4)], "output": [None]},
        "Cell.fc.Dense.parameters_grad.0": {"weight": [leaf(0.75, 4, 3)], "bias": [leaf(0.5, 4)]},
    }
    header = {"task": "statistics", "level": "mix", "framework": "mindspore", "dump_data_dir": None}
    parents = {name: "Cell.fc.Dense.forward.0" if name.startswith("Mint") else None for name in data}
    rank = folder / "step0" / "proc4711"
    rank.mkdir(parents=True)
    (rank / "dump.json").write_text(json.dumps({**header, "data": data}, indent=1))
    (rank / "construct.json").write_text(json.dumps(parents, indent=1))
    (rank / "stack.json").write_text(json.dumps({"0": [list(data)[:2], ["File net.py, line 9, in construct, \n y"]]}))
    return folder


def test_a_mindspore_dump_of_msprobe_is_compared(tmp_path: Path) -> None:
    reference = write_msprobe_dump(tmp_path / "r")

    assert tensorprobe.compare(reference, write_msprobe_dump(tmp_path / "same")).verdict.kind == "agree"
    verdict = tensorprobe.compare(reference, write_msprobe_dump(tmp_path / "other", relu=1.5)).verdict
    assert (verdict.kind, verdict.call and verdict.call.name) == ("source", "Primitive.relu.ReLU.0.forward")


def test_a_mindspore_dump_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "show", write_msprobe_dump(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    assert "fc: Dense" in done.stdout
    assert "Primitive.relu.ReLU.0" in done.stdout


def normalized(run: Recording, memory: float, wrong: float = 0.0, takes: int = 0) -> None:
    """A BatchNorm with a second result that its kernel does not fill, and a call that takes one of the two."""
    results = [X + np.float32(wrong), np.full(8, memory, np.float32) * np.arange(8, dtype=np.float32)]
    taken = run.api("Primitive.bn_train.BatchNorm", run.data(X), output=results)[takes]
    run.api("Functional.relu", taken, output=np.maximum(taken.array, 0))


def test_memory_that_a_kernel_does_not_fill_is_never_compared(tmp_path: Path) -> None:
    for takes in (0, 1):
        runs = Recording(framework="mindspore"), Recording(framework="mindspore")
        normalized(runs[0], 1.0, takes=takes)
        normalized(runs[1], 7.0, takes=takes)
        first = compared(tmp_path / str(takes), *runs).ranks[0].calls[0]
        assert (first.role, first.values[-1].reason) == ("clean", "undefined memory")


def test_a_wrong_result_beside_such_memory_is_found(tmp_path: Path) -> None:
    runs = Recording(framework="mindspore"), Recording(framework="mindspore")
    normalized(runs[0], 1.0)
    normalized(runs[1], 7.0, wrong=0.01)

    verdict = compared(tmp_path, *runs).verdict

    assert (verdict.kind, verdict.call and verdict.call.name) == ("source", "Primitive.bn_train.BatchNorm.0.forward")


def test_an_argument_that_only_the_gradient_shows_is_named(tmp_path: Path) -> None:
    """Label smoothing hardly changes a loss of equal logits, and a tenth of its gradient."""

    def record(**kwargs: Any) -> Recording:
        run = Recording(framework="mindspore")
        gradient = X * np.float32(0.9 if kwargs else 1.0)
        run.api("Functional.cross_entropy", run.data(X), output=X.mean(), kwargs=kwargs)
        run.backward("Functional.cross_entropy.0", run.data(np.ones((), np.float32)), gradient)
        return run

    verdict = compared(tmp_path, record(), record(label_smoothing=0.1)).verdict

    assert (verdict.kind, verdict.call and verdict.call.name) == ("entered", "Functional.cross_entropy.0.backward")
    assert "its forward was called with label_smoothing=0.1 where the reference gave none" in verdict.headline


def test_a_table_that_differs_from_the_start_is_a_parameter(tmp_path: Path) -> None:
    def record(table: np.ndarray) -> Recording:
        run = Recording(framework="mindspore")
        rows = run.data(np.array([1, 2]))
        run.api("Primitive.gather.Gather", run.data(table, requires_grad=True), rows, 0, output=table[[1, 2]])
        return run

    assert compared(tmp_path, record(W), record(W * np.float32(1.01))).verdict.kind == "unequal start"


def test_a_jitted_function_may_round_as_often_as_the_operations_in_it(tmp_path: Path) -> None:
    def record(stem: str, wrong: float) -> Recording:
        run = Recording(framework="mindspore")
        run.api(stem, run.data(X), output=np.tanh(X) * np.float32(1 + wrong))
        return run

    for stem, kind in (("Jit.block", "agree"), ("Functional.tanh", "source")):
        verdict = compared(tmp_path / stem, record(stem, 0.0), record(stem, 8e-6)).verdict
        assert (stem, verdict.kind) == (stem, kind)


def normalised(epsilon: float, axis: int = -1, name: str = "norm", **edit: Any) -> Recording:
    """One LayerNorm, recorded with what it was made with."""
    run = Recording("tensor", "L1", framework="mindspore")
    settings = {key: {"type": type(one).__name__, "value": one} for key, one in (("begin", axis), ("epsilon", epsilon))}
    mean, variance = X.mean(1, keepdims=True), X.var(1, keepdims=True)
    output = ((X - mean) / np.sqrt(variance + np.float32(epsilon))).astype(np.float32)
    fields = {"settings": settings} if edit.get("has_settings", True) else {}
    run.api(f"Primitive.{name}.LayerNorm", run.data(X), output=output, fields=fields)
    return run


def test_another_setting_of_a_primitive_is_named_as_a_differing_argument(tmp_path: Path) -> None:
    verdict = compared(tmp_path, normalised(1e-5), normalised(1e-1)).verdict
    assert (verdict.kind, verdict.call and verdict.call.name) == ("entered", "Primitive.norm.LayerNorm.0.forward")
    assert "called with epsilon=0.1 where the reference had 1e-05" in verdict.headline
    assert "input input.0: equal" in verdict.evidence


def test_so_it_is_where_the_primitive_has_another_name_in_its_cell(tmp_path: Path) -> None:
    verdict = compared(tmp_path, normalised(1e-5), normalised(1e-1, name="other")).verdict
    assert verdict.kind == "entered" and "called with epsilon=0.1" in verdict.headline


def test_settings_that_only_one_of_two_dumps_has_say_nothing(tmp_path: Path) -> None:
    """One of them was recorded before there were any."""
    assert compared(tmp_path, normalised(1e-5, has_settings=False), normalised(1e-5)).verdict.kind == "agree"
