"""Which call is to blame, where numbers could mislead: noise passed on, masks, models used twice in a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tests.compare.recording import Recording
from tests.compare.test_engine import V, W, X, compare_edited, compared, named


def test_a_call_that_only_passes_on_what_cancellation_left_is_no_source(tmp_path: Path) -> None:
    """The gradient of a softmax cancels nearly to nothing; the view behind it returns the same noise."""
    large, small = X, X * np.float32(0.001)

    def program(run: Recording, noise: float = 0.0) -> None:
        a = run.api("Tensor.view", run.data(X), output=X.copy())
        run.api("Tensor.softmax", a, output=X.copy())
        rest = small + np.float32(noise) * small[::-1]
        gradient = run.backward("Tensor.softmax.0", run.data(large), rest)
        run.backward("Tensor.view.0", gradient, rest.copy())

    result = compare_edited(tmp_path, program, {"noise": 2e-5})
    assert result, result.verdict
    assert not compare_edited(tmp_path / "wrong", program, {"noise": 0.1})


def test_noise_is_larger_beside_what_a_second_cancellation_left(tmp_path: Path) -> None:
    """A softmax leaves little of a gradient, and the linear layer before it a third of that: the noise stays."""
    large, small = X, X * np.float32(0.001)

    def program(run: Recording, noise: float = 0.0, wrong: float = 0.0) -> None:
        a = run.api("Functional.linear", run.data(X), run.data(W), output=X.copy())
        run.api("Tensor.softmax", a, output=X.copy())
        error = np.float32(noise) * small[::-1]
        gradient = run.backward("Tensor.softmax.0", run.data(large), small + error)
        run.backward("Functional.linear.0", gradient, small / 3 + error + np.float32(wrong) * small)

    result = compare_edited(tmp_path, program, {"noise": 2e-5})
    assert result, result.verdict
    assert named(compare_edited(tmp_path / "wrong", program, {"noise": 2e-5, "wrong": 0.01})) == (
        "Functional.linear.0.backward"
    )


def test_another_result_of_the_same_call_is_said_to_be_that(tmp_path: Path) -> None:
    def program(run: Recording, taken: int = 1) -> None:
        halves = run.api("Tensor.chunk", run.data(X), 2, output=[X[:, :3], X[:, 3:]])
        run.api("Tensor.neg", halves[taken], output=-halves[taken].array)

    headline = compare_edited(tmp_path, program, {"taken": 0}).verdict.headline

    assert "input.0 differs: it is output.0 of Tensor.chunk.0.forward where the reference took output.1" in headline


def masked_attention(run: Recording, noise: float = 0.0, wrong: float = 0.0, fill: float = -1e9) -> None:
    """Scores of some size, a mask of -1e9 over half of them, a softmax; `noise` is relative to the scores."""
    scores = ((50 + X @ V[:, :4]) * (1 + noise * np.sign(X @ W[:, :4]))).astype(np.float32)
    a = run.api("Tensor.matmul", run.data(X), run.data(X), output=scores)
    masked = np.where(np.triu(np.ones((4, 4)), 1) > 0, np.float32(fill), scores)
    b = run.api("Tensor.masked_fill", a, output=masked)
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    run.api("Tensor.softmax", b, output=weights / weights.sum(-1, keepdims=True) + np.float32(wrong))


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_rounding_of_masked_scores_is_not_blamed_on_the_softmax(tmp_path: Path, task: str) -> None:
    result = compare_edited(tmp_path, masked_attention, {"noise": 2e-6}, task)
    assert result, result.verdict
    assert result.ranks[0].value_counts["close"] >= 2


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_wrong_softmax_of_masked_scores_is_named(tmp_path: Path, task: str) -> None:
    result = compare_edited(tmp_path, masked_attention, {"noise": 1e-7, "wrong": 1e-3, "fill": -1e9 - 64}, task)
    assert (result.verdict.kind, named(result)) == ("source", "Tensor.softmax.0.forward")


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_parameter_that_an_optimizer_changed_within_the_step_did_not_start_unequal(
    tmp_path: Path, level: str
) -> None:
    """A model that is used, trained, and used again in one step, as the discriminator of a GAN is."""

    def use(run: Recording, weight: np.ndarray) -> None:
        w = run.data(weight, requires_grad=True)
        if level == "L1":
            run.api("Functional.linear", run.data(X), w, output=X @ weight.T, module_path="fc")
            return
        with run.module("fc", "Linear", run.data(X), parameters={"weight": w}) as call:
            call.output = X @ weight.T

    def program(run: Recording, rate: float = 0.1) -> None:
        use(run, W)
        run.backward("Functional.linear.0" if level == "L1" else "Module.fc.Linear", run.data(X), X @ W)
        use(run, W * np.float32(1 - rate))

    result = compare_edited(tmp_path, program, {"rate": 0.2}, level=level)
    second = "Functional.linear.1.forward" if level == "L1" else "Module.fc.Linear.forward.1"
    assert (result.verdict.kind, named(result)) == ("entered", second)


def test_an_optimizer_that_went_wrong_before_its_parameters_were_used_again_is_named(tmp_path: Path) -> None:
    def program(run: Recording, rate: float = 0.1) -> None:
        w = run.data(W, requires_grad=True)
        run.api("Functional.linear", run.data(X), w, output=X @ W.T)
        updated = W * np.float32(1 - rate)
        w = run.api("Tensor.mul_", w, 1 - rate, output=updated, fields={"caller": "optimizer"})
        run.api("Functional.linear", run.data(X), w, output=X @ updated.T)

    result = compare_edited(tmp_path, program, {"rate": 0.2})
    assert (result.verdict.kind, named(result)) == ("entered", "Tensor.mul_.0.forward")
    assert "All calls of the program before it agree" in result.verdict.headline
    assert "called with input.1=0.8 where the reference had 0.9" in result.verdict.headline


def test_an_argument_that_shows_only_in_backward_is_named_there(tmp_path: Path) -> None:
    """A custom function that scales its gradient: its forward returns the same."""

    def program(run: Recording, factor: float = 2.0) -> None:
        a = run.api("Autograd.Scale", run.data(X), factor, output=X.copy())
        run.api("Functional.relu", a, output=np.maximum(X, 0))
        gradient = run.backward("Functional.relu.0", run.data(X), X.copy())
        run.backward("Autograd.Scale.0", gradient, X * np.float32(factor))

    result = compare_edited(tmp_path, program, {"factor": 2.5})
    assert (result.verdict.kind, named(result)) == ("entered", "Autograd.Scale.0.backward")
    assert "its forward was called with input.1=2.5 where the reference had 2.0" in result.verdict.headline


def test_large_integers_that_differ_by_one_do_not_agree(tmp_path: Path) -> None:
    def program(run: Recording, number: int = 2**60) -> None:
        array = np.array([5, number])
        run.api("Torch.tensor", output=array)

    result = compare_edited(tmp_path, program, {"number": 2**60 + 1}, "statistics")
    assert (result.verdict.kind, named(result)) == ("source", "Torch.tensor.0.forward")


def test_a_recomputation_that_ends_before_its_last_result_is_no_difference(tmp_path: Path) -> None:
    """Of the two kinds of checkpointing in torch, one stops when the backward has what it needs."""

    def program(run: Recording, is_whole: bool = False) -> None:
        run.api("Functional.relu", run.data(X), output=np.maximum(X, 0))
        again = dict(run.records["Functional.relu.0.forward"])
        run.records["Functional.relu.0.recompute"] = again if is_whole else {**again, "output": []}

    result = compare_edited(tmp_path, program, {"is_whole": True})
    assert result, result.verdict


def test_the_headline_over_several_steps_counts_the_programs_own_calls(tmp_path: Path) -> None:
    for side in ("r", "c"):
        for step in range(2):
            run = Recording()
            a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
            run.api("Tensor.mul_", a, 0.9, output=a.array * np.float32(0.9), fields={"caller": "optimizer"})
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert "2 of 2 steps and ranks, 2 calls, 6 values" in result.verdict.headline


def test_a_run_of_both_levels_against_one_of_modules_only_names_the_module(tmp_path: Path) -> None:
    def program(run: Recording, has_calls: bool = True, factor: float = 1.0) -> None:
        x = run.data(X)
        with run.module("", "Net", x) as net:
            y = run.api("Tensor.mul", x, factor, output=X * np.float32(factor)) if has_calls else run.data(X * factor)
            with run.module("fc", "Linear", y) as fc:
                fc.output = y.array @ W.T
            net.output = fc.output.array @ V.T

    result = compare_edited(tmp_path, program, {"has_calls": False, "factor": np.float32(1.01)}, level="mix")
    assert (result.verdict.kind, named(result)) == ("source", "Module.Net.forward.0")


def test_what_was_compared_before_is_said_of_this_step_only(tmp_path: Path) -> None:
    for side in ("r", "c"):
        for step in range(2):
            run = Recording()
            if side == "r" and step == 0:
                run.api("Torch.erf", run.data(X), output=X.copy())  # only the reference calls it
            wrong = 0.5 if (side, step) == ("c", 1) else 0.0
            run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) + np.float32(wrong))
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert "everything before it in this step was compared" in result.verdict.evidence


def test_with_a_fixed_tolerance_nothing_is_said_of_what_is_explained(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        a = run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) + np.float32(wrong / 100))
        run.api("Functional.silu", a, output=a.array + np.float32(wrong))

    reference, candidate = Recording(), Recording()
    program(reference)
    program(candidate, wrong=0.1)
    result = compared(tmp_path, reference, candidate, atol=0.01)
    assert named(result) == "Functional.silu.0.forward"
    assert any("input input.0: agrees within the tolerance, error" in line for line in result.verdict.evidence)


@pytest.mark.parametrize("first", [False, True])
def test_the_verdict_is_that_of_the_rank_whose_difference_arose_first(tmp_path: Path, first: bool) -> None:
    """A fault in the forward of one rank reaches the gradients of all, which the ranks exchange."""
    for side in ("r", "c"):
        for rank in range(2):
            run = Recording()
            wrong, shared = (0.5 if (side, rank) == ("c", 1) else 0.0), (0.1 if side == "c" else 0.0)
            run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) + np.float32(wrong))
            run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
            run.backward("Functional.linear.0", run.data(X), X @ W + np.float32(shared))
            run.write(tmp_path / side, rank=f"rank{rank}")
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c", first=first)
    assert named(result) == "Functional.relu.0.forward"
    assert result.verdict.headline.endswith("(step0/rank1).")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_activations_of_a_dump_without_data_flow_are_no_parameters(tmp_path: Path, task: str) -> None:
    """msprobe does not say where a value comes from: every activation looks like a leaf that requires a gradient."""

    def program(run: Recording, approximate: str = "none") -> None:
        w = run.data(W, requires_grad=True)
        a = run.api("Functional.linear", run.data(X), w, output=X @ W.T)
        wrong = np.float32(0.01 if approximate == "tanh" else 0)
        b = run.api("Functional.gelu", a, kwargs={"approximate": approximate}, output=np.maximum(a.array, 0) + wrong)
        c = run.api("Functional.linear", b, run.data(V, requires_grad=True), output=b.array @ V.T)
        run.api("Torch.add", c, b, output=b.array + c.array)
        for record in run.records.values():
            for leaf in [*record["input_args"], *record["output"]]:
                leaf["requires_grad"] = True
                leaf.pop("source", None)

    result = compare_edited(tmp_path, program, {"approximate": "tanh"}, task)
    assert (result.verdict.kind, named(result)) == ("entered", "Functional.gelu.0.forward")
    assert "approximate='tanh' where the reference had 'none'" in result.verdict.headline


def test_a_value_that_was_saved_by_hand_has_no_inputs_that_could_agree(tmp_path: Path) -> None:
    for side, value in (("r", X), ("c", X + np.float32(0.5))):
        run = Recording(level="debug")
        folder = run.write(tmp_path / side) / "step0" / "rank"
        np.save(folder / "dump_tensor_data" / "x.0.debug.npy", value)
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 8], "data_name": "x.0.debug.npy"}
        header = {"task": "tensor", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
        (folder / "debug.json").write_text(json.dumps({**header, "data": {"x.0.debug": leaf}}))
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert result.verdict.headline == "The runs first differ at x.0.debug: the saved value differs."
    assert result.verdict.evidence[0].startswith("result: differs: relative error")


def test_what_requires_a_gradient_is_not_called_data(tmp_path: Path) -> None:
    """Between two steps an optimizer that was not recorded has changed a parameter: at L1 that is all that is known."""

    def program(run: Recording, factor: float = 1.0) -> None:
        weight = run.data(W * np.float32(factor), requires_grad=True)
        run.api("Functional.linear", run.data(X), weight, output=X @ weight.array.T)

    for side, factor in (("r", 1.0), ("c", 1.1)):
        for step in range(2):
            run = Recording()
            program(run, factor if step else 1.0)
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert "input.1 differs: it comes from code that was not recorded: a parameter or an" in result.verdict.headline


def test_what_one_statistic_shows_of_an_error_explains_what_another_shows_of_it_next(tmp_path: Path) -> None:
    """An error across a vector leaves its mean and its norm as they were; after a weighting it shows in the norm."""

    def program(run: Recording, error: float = 0.0) -> None:
        vector = np.array([2, 1, -1, -2], np.float32) + np.float32(error) * np.array([1, -1, -1, 1], np.float32)
        a = run.api("Torch.sort", run.data(X), output=vector)
        run.api("Functional.elu", a, output=vector * np.array([0.1, 10, 0.1, 0.1], np.float32))

    result = compare_edited(tmp_path, program, {"error": 4.8e-6}, "statistics")
    assert result, result.verdict


def test_a_value_that_was_rounded_to_fewer_digits_has_no_more_of_them_after_a_cast(tmp_path: Path) -> None:
    """Autocast: noise of half precision, in a tensor of float32."""

    def program(run: Recording, noise: float = 0.0) -> None:
        rough = (X @ W.T * (1 + noise * np.sign(X @ V))).astype(np.float16)
        a = run.api("Functional.linear", run.data(X), run.data(W), output=rough)
        run.api("Tensor.float", a, output=rough.astype(np.float32))

    result = compare_edited(tmp_path, program, {"noise": 5e-4})
    assert result, result.verdict
    assert result.ranks[0].value_counts["close"] == 3
    assert not compare_edited(tmp_path / "wrong", program, {"noise": 0.05})


def relu_twice(run: Recording, noise: float = 0.0, flipped: int = 0, path: str = "Functional.relu") -> None:
    """A linear layer, whose result has noise, and a relu, of whose gradient some elements have changed sides."""
    a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T * np.float32(1 + noise))
    run.api(path, a, output=np.maximum(a.array, 0))
    gradient = np.full((4, 8), 0.5, np.float32)
    result = gradient.copy()
    result.reshape(-1)[:flipped] = 0.0
    run.backward(f"{path}.0", run.data(gradient), result)


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        ({"noise": 3e-7, "flipped": 1}, "discontinuity"),
        ({"noise": 3e-7, "flipped": 20}, "source"),  # more than rounding can push over the edge
        ({"flipped": 1}, "source"),  # without noise nothing changes sides
        ({"noise": 3e-7, "flipped": 1, "path": "Functional.gelu"}, "source"),
    ],
)
def test_a_gradient_that_jumps_where_rounding_changes_sides_is_a_discontinuity(
    tmp_path: Path, edit: dict[str, Any], kind: str
) -> None:
    path = {"path": edit.get("path", "Functional.relu")}
    reference, candidate = Recording(), Recording()
    relu_twice(reference, **path)
    relu_twice(candidate, **edit)

    result = compared(tmp_path, reference, candidate)

    assert (result.verdict.kind, named(result)) == (kind, f"{path['path']}.0.backward")
