"""What `tensorprobe.compare` says of two runs, in the words of a user who has a wrong number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.report.compare_summary import summarize
from tests.compare.recording import Recording, Traced, forget_statistics

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
W = RNG.standard_normal((8, 8)).astype(np.float32)
V = RNG.standard_normal((8, 8)).astype(np.float32)

Edit = dict[str, Any]


def three_calls(run: Recording, x: np.ndarray = X, wrong: np.ndarray | float = 0.0, **options: Any) -> None:
    """linear, relu (to which `wrong` is added), linear."""
    data, w, v = run.data(x), run.data(W, requires_grad=True), run.data(V, requires_grad=True)
    a = run.api("Functional.linear", data, w, output=x @ W.T)
    b = run.api("Functional.relu", a, output=np.maximum(a.array, 0) + np.float32(wrong), **options)
    run.api("Functional.linear", b, v, output=b.array @ V.T)


def compared(tmp_path: Path, reference: Recording, candidate: Recording, **options: Any) -> Comparison:
    return tensorprobe.compare(reference.write(tmp_path / "r"), candidate.write(tmp_path / "c"), **options)


def compare_edited(
    tmp_path: Path, program: Callable[..., None], edit: Edit, task: str = "tensor", **kwargs: Any
) -> Comparison:
    reference, candidate = Recording(task, **kwargs), Recording(task, **kwargs)
    program(reference)
    program(candidate, **edit)
    return compared(tmp_path, reference, candidate)


def named(result: Comparison) -> str:
    assert result.verdict.call is not None
    return result.verdict.call.name


def roles(result: Comparison) -> dict[str, str]:
    return {call.name: call.role for rank in result.ranks for call in rank.calls}


# -------------------------------------------------------------------------------------------------- agreement


def test_a_run_agrees_with_itself_and_says_what_that_covers(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, three_calls, {})
    assert result
    assert result.verdict.kind == "agree"
    assert "3 calls are paired, and all 8 values agree, bit for bit" in result.verdict.headline
    assert result.ranks[0].coverage.share == 1.0


def test_a_result_is_shown_as_its_sentence(tmp_path: Path) -> None:
    shown = repr(compare_edited(tmp_path, three_calls, {"wrong": 0.01}))
    assert "The runs first differ at Functional.relu.0.forward" in shown
    assert len(shown) < 500


def test_rounding_noise_is_no_difference(tmp_path: Path) -> None:
    noise = (X * 3e-7).astype(np.float32)
    result = compare_edited(tmp_path, three_calls, {"wrong": np.abs(noise @ W.T) * np.float32(0.1)})
    assert result, result.verdict
    assert result.ranks[0].value_counts["close"] > 0
    assert "up to rounding" in result.verdict.headline


def test_a_product_computed_in_two_halves_is_no_difference(tmp_path: Path) -> None:
    def program(run: Recording, is_split: bool = False) -> None:
        x, w = run.data(X), run.data(W, requires_grad=True)
        a = run.api("Functional.relu", x, output=np.maximum(X, 0), module_path="fc")
        if is_split:
            halves = []
            for start in (0, 4):
                part = run.api("Tensor.narrow", a, 1, start, 4, output=a.array[:, start : start + 4], module_path="fc")
                rows = run.api("Tensor.narrow", w, 1, start, 4, output=W[:, start : start + 4], module_path="fc")
                product = part.array @ rows.array.T
                halves.append(run.api("Functional.linear", part, rows, output=product, module_path="fc"))
            y = run.api("Tensor.add", *halves, output=halves[0].array + halves[1].array, module_path="fc")
        else:
            y = run.api("Functional.linear", a, w, output=a.array @ W.T, module_path="fc")
        run.api("Torch.tanh", y, output=np.tanh(y.array), module_path="fc")

    result = compare_edited(tmp_path, program, {"is_split": True})
    assert result, result.verdict
    assert [call.rule for call in result.ranks[0].calls] == ["same name", "group", "same name"]


def test_two_differently_seeded_models_never_pass(tmp_path: Path) -> None:
    def program(run: Recording, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        w = run.data(generator.standard_normal((8, 8)).astype(np.float32), requires_grad=True)
        run.api("Functional.linear", run.data(X), w, output=X @ w.array.T)

    for task in ("tensor", "statistics"):
        assert compare_edited(tmp_path / task, program, {"seed": 1}, task).verdict.kind == "unequal start"


# -------------------------------------------------------------------------------------------------- the source


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_the_source_is_the_call_whose_inputs_agree_and_whose_result_does_not(tmp_path: Path, task: str) -> None:
    result = compare_edited(tmp_path, three_calls, {"wrong": 0.01}, task)
    assert not result
    assert (result.verdict.kind, named(result)) == ("source", "Functional.relu.0.forward")
    assert roles(result) == {
        "Functional.linear.0.forward": "clean",
        "Functional.relu.0.forward": "source",
        "Functional.linear.1.forward": "propagated",
    }


def test_the_verdict_brings_its_evidence(tmp_path: Path) -> None:
    wrong = np.zeros((4, 8), np.float32)
    wrong[2, 5] = 0.5
    result = compare_edited(tmp_path, three_calls, {"wrong": wrong, "module_path": "layer.act"})
    evidence = "\n".join(result.verdict.evidence)
    assert "The runs first differ at Functional.relu.0.forward" in result.verdict.headline
    assert "line: model.py:2 in forward: call_2()" in evidence
    assert "input input.0: equal" in evidence
    assert (
        "result output.0: differs: relative error" in evidence
        and "; rounding and the inputs' errors allow" in evidence
        and "worst element [2, 5]: candidate" in evidence
    )
    assert "everything before it was compared" in evidence


def test_every_row_has_the_source_line_of_its_call(tmp_path: Path) -> None:
    rows = compare_edited(tmp_path, three_calls, {"wrong": 0.01}).rows
    assert {row.reference_location for row in rows} == {
        f"model.py:{line} in forward: call_{line}()" for line in (1, 2, 3)
    }


def test_with_checksums_equality_is_all_that_is_known(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        three_calls(run, wrong=wrong)
        forget_statistics(run)

    same = compare_edited(tmp_path / "same", program, {}, "statistics", checksum=True)
    assert same and same.ranks[0].bases == {"checksum": 8}
    result = compare_edited(tmp_path / "wrong", program, {"wrong": 1e-6}, "statistics", checksum=True)
    assert named(result) == "Functional.relu.0.forward"
    assert any("the checksums differ" in line for line in result.verdict.evidence)


def test_tensors_against_statistics_are_compared_by_statistics(tmp_path: Path) -> None:
    reference, candidate = Recording("tensor"), Recording("statistics")
    three_calls(reference)
    three_calls(candidate, wrong=0.01)
    result = compared(tmp_path, reference, candidate)
    assert named(result) == "Functional.relu.0.forward"
    assert set(result.ranks[0].bases) == {"statistics"}


def test_a_nan_on_one_side_is_a_difference_however_small_its_share(tmp_path: Path) -> None:
    wrong = np.zeros((4, 8), np.float32)
    wrong[0, 3] = np.nan
    for task in ("tensor", "statistics"):
        result = compare_edited(tmp_path / task, three_calls, {"wrong": wrong}, task)
        assert named(result) == "Functional.relu.0.forward"
        assert any("1 NaN only in the candidate" in line for line in result.verdict.evidence)


def test_a_single_wrong_element_of_many_is_found(tmp_path: Path) -> None:
    big = np.linspace(-1, 1, 100_000, dtype=np.float32).reshape(100, 1000)

    def program(run: Recording, wrong: float = 0.0) -> None:
        result = big * 2
        result[50, 7] += np.float32(wrong)
        run.api("Tensor.mul", run.data(big), 2, output=result)

    result = compare_edited(tmp_path, program, {"wrong": 1e-3})
    assert named(result) == "Tensor.mul.0.forward"
    assert result.verdict.call is not None
    measured = result.verdict.call.values[-1].measurement
    assert measured is not None and measured.worst_index == (50, 7)


def test_another_shape_of_the_result_is_a_difference(tmp_path: Path) -> None:
    def program(run: Recording, rows: int = 4) -> None:
        run.api("Tensor.narrow", run.data(X), output=X[:rows])

    result = compare_edited(tmp_path, program, {"rows": 3})
    assert named(result) == "Tensor.narrow.0.forward"
    assert any("shape [4, 8] against [3, 8]" in line for line in result.verdict.evidence)


def test_another_dtype_is_a_difference_unless_tolerances_are_given(tmp_path: Path) -> None:
    def program(run: Recording, dtype: Any = np.float32) -> None:
        run.api("Tensor.mul", run.data(X), 2, output=(X * 2).astype(dtype))

    reference, candidate = Recording(), Recording()
    program(reference)
    program(candidate, np.float16)
    result = compared(tmp_path, reference, candidate)
    assert named(result) == "Tensor.mul.0.forward"
    assert any("float16 where the reference has float32" in line for line in result.verdict.evidence)
    assert compared(tmp_path, reference, candidate, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_tolerances_that_are_given_decide_alone(tmp_path: Path, task: str) -> None:
    reference, candidate = Recording(task), Recording(task)
    three_calls(reference)
    three_calls(candidate, wrong=1e-3)
    assert compared(tmp_path, reference, candidate, rtol=0.1, atol=0.1)
    assert not compared(tmp_path, reference, candidate, rtol=1e-5)
    assert not compared(tmp_path, reference, candidate, atol=0.0)


def test_a_mapping_pairs_what_names_do_not(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    for run, stem in ((reference, "Torch.swish"), (candidate, "Functional.my_act")):
        a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
        run.api(stem, a, output=np.tanh(a.array))
    mapping = {"calls": {"Torch.swish.0": "Functional.my_act.0"}}
    result = compared(tmp_path, reference, candidate, mapping=mapping)
    assert result and result.ranks[0].coverage.share == 1.0
    assert [call.rule for call in result.ranks[0].calls] == ["same name", "mapping"]
    with pytest.raises(UsageError, match=r"Torch\.swash\.0"):
        compared(tmp_path, reference, candidate, mapping={"calls": {"Torch.swash.0": "Functional.my_act.0"}})


def test_a_mapping_may_name_what_only_some_steps_have(tmp_path: Path) -> None:
    for side in ("r", "c"):
        for step in range(2):
            run = Recording()
            a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
            if step:
                run.api("Torch.swish" if side == "r" else "Torch.silu", a, output=np.tanh(a.array))
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c", mapping={"calls": {"Torch.swish.0": "Torch.silu.0"}})
    assert [rank.coverage.share for rank in result.ranks] == [1.0, 1.0]
    with pytest.raises(UsageError, match=r"Torch\.swash\.0 is not a call of the reference"):
        tensorprobe.compare(tmp_path / "r", tmp_path / "c", mapping={"calls": {"Torch.swash.0": "Torch.silu.0"}})


def test_a_call_that_raised_on_one_side_is_the_source(tmp_path: Path) -> None:
    def program(run: Recording, error: str | None = None) -> None:
        fields = {"failed": error} if error else {}
        run.api("Torch.add", run.data(X), 1, output=None if error else X + 1, fields=fields)

    result = compare_edited(tmp_path, program, {"error": "RuntimeError: no kernel"})
    assert "it raised an error in the candidate only: RuntimeError: no kernel" in result.verdict.headline


# -------------------------------------------------------------------------------------------------- entered


def test_other_data_entered_with_the_first_call_that_used_it(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, three_calls, {"x": X + np.float32(0.1)})
    assert (result.verdict.kind, named(result)) == ("entered", "Functional.linear.0.forward")
    assert (
        "input.0 differs: it comes from code that was not recorded: the input data differs" in result.verdict.headline
    )


def test_other_data_is_not_blamed_on_the_code_of_the_model_that_takes_it(tmp_path: Path) -> None:
    """The calls in it are judged before the model is, and no record says where their input comes from."""

    def program(run: Recording, shift: float = 0.0) -> None:
        data = X + np.float32(shift)
        with run.module("", "Net", run.data(data)) as call:
            call.output = run.api("Tensor.sub", run.data(data * 2), 1.0, output=data * 2 - 1).array

    result = compare_edited(tmp_path, program, {"shift": 0.5}, level="mix")
    assert (result.verdict.kind, named(result)) == ("entered", "Module.Net.forward.0")


def test_a_wrong_argument_is_evidence_by_itself(tmp_path: Path) -> None:
    def program(run: Recording, eps: float = 1e-5) -> None:
        run.api("Functional.layer_norm", run.data(X), kwargs={"eps": eps}, output=X / (1 + np.float32(eps)))

    for task in ("tensor", "statistics"):
        result = compare_edited(tmp_path / task, program, {"eps": 1e-3}, task)
        assert result.verdict.kind == "entered"
        assert "called with eps=0.001 where the reference had 1e-05" in result.verdict.headline


def test_an_argument_without_effect_is_none(tmp_path: Path) -> None:
    def program(run: Recording, size: int = -1) -> None:
        run.api("Tensor.view", run.data(X), 4, size, output=X.copy())

    assert compare_edited(tmp_path, program, {"size": 8})


def test_addresses_devices_and_negative_dimensions_are_no_difference(tmp_path: Path) -> None:
    def program(run: Recording, dim: int = -1, device: str = "cpu") -> None:
        noise = np.float32(1 if dim < 0 else 1 + 2e-7)
        run.api("Torch.sum", run.data(X), kwargs={"dim": dim}, output=X.sum(1) * noise)
        run.records["Torch.sum.0.forward"]["input_kwargs"]["device"] = {"type": "torch.device", "value": device}

    assert compare_edited(tmp_path, program, {"dim": 1, "device": "npu:0"})


def test_swapped_operands_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    def program(run: Recording, is_swapped: bool = False) -> None:
        a = run.api("Torch.exp", run.data(X), output=np.exp(X))
        b = run.api("Torch.sin", run.data(X), output=np.sin(X))
        first, second = (b, a) if is_swapped else (a, b)
        run.api("Torch.sub", first, second, output=first.array - second.array)

    result = compare_edited(tmp_path, program, {"is_swapped": True})
    assert (result.verdict.kind, named(result)) == ("entered", "Torch.sub.0.forward")
    assert "it comes from Torch.exp.0.forward in the reference and from Torch.sin.0.forward" in result.verdict.headline


def test_a_missing_call_is_named_where_its_result_is_missed(tmp_path: Path) -> None:
    def program(run: Recording, has_residual: bool = True) -> None:
        x = run.data(X)
        a = run.api("Functional.linear", x, run.data(W), output=X @ W.T, module_path="block")
        if has_residual:
            a = run.api("Tensor.add", a, x, output=a.array + X, module_path="block")
        run.api("Functional.relu", a, output=np.maximum(a.array, 0), module_path="block")

    result = compare_edited(tmp_path, program, {"has_residual": False})
    assert (result.verdict.kind, named(result)) == ("entered", "Functional.relu.0.forward")
    assert [call.name for call in result.verdict.suspects] == ["Tensor.add.0.forward"]
    assert any(
        "without a counterpart in the candidate: Tensor.add.0.forward" in line for line in result.verdict.evidence
    )


def test_a_call_after_a_respelt_one_is_named_as_inserted(tmp_path: Path) -> None:
    def program(run: Recording, is_squared: bool = False) -> None:
        a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T, module_path="block")
        stem = "Tensor.clamp" if is_squared else "Functional.relu"
        b = run.api(stem, a, output=np.maximum(a.array, 0), module_path="block")
        if is_squared:
            b = run.api("Tensor.square", b, output=b.array**2, module_path="block")
        run.api("Functional.linear", b, run.data(V), output=b.array @ V.T, module_path="block")

    result = compare_edited(tmp_path, program, {"is_squared": True})
    assert named(result) == "Functional.linear.1.forward"
    assert [call.name for call in result.verdict.suspects] == ["Tensor.square.0.forward"]


def test_a_write_that_nobody_saw_is_told_from_a_wrong_call(tmp_path: Path) -> None:
    def program(run: Recording, change: float = 0.0) -> None:
        a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T)
        changed = Traced(a.array + np.float32(change), a.source)
        run.api("Functional.relu", changed, output=np.maximum(changed.array, 0))

    result = compare_edited(tmp_path, program, {"change": 0.5})
    assert (result.verdict.kind, named(result)) == ("entered", "Functional.relu.0.forward")
    assert "returned agrees, but it was changed before this call" in result.verdict.headline


def test_an_input_that_has_no_effect_is_not_blamed(tmp_path: Path) -> None:
    def program(run: Recording, padding: float = 0.0) -> None:
        x = X.copy()
        x[3] = padding
        run.api("Tensor.__getitem__", run.data(x), 3, output=X[:3])

    result = compare_edited(tmp_path, program, {"padding": 7.0})
    assert roles(result) == {"Tensor.__getitem__.0.forward": "clean"}
    assert "1 of 2 values agree, bit for bit; 1 input differs, with no effect on the results" in result.verdict.headline


# -------------------------------------------------------------------------------------------------- the start


def test_unequal_parameters_are_said_first(tmp_path: Path) -> None:
    def program(run: Recording, factor: float = 1.0) -> None:
        a = run.api("Functional.relu", run.data(X), output=np.maximum(X, 0) * np.float32(factor))
        w = run.data(W * np.float32(factor), requires_grad=True)
        with run.module("fc", "Linear", a, parameters={"weight": w}) as call:
            call.output = run.api("Functional.linear", a, w, output=a.array @ w.array.T)

    result = compare_edited(tmp_path, program, {"factor": 1.1}, level="mix")
    assert result.verdict.kind == "unequal start"
    assert "1 parameter differs before the first call: fc.weight" in result.verdict.headline
    assert any("the first other difference is at Functional.relu.0" in line for line in result.verdict.evidence)


def test_a_stale_buffer_entered_with_its_module(tmp_path: Path) -> None:
    def program(run: Recording, mean: float = 0.0) -> None:
        buffers = {"running_mean": run.data(np.full(8, mean, np.float32))}
        with run.module("norm", "BatchNorm1d", run.data(X), buffers=buffers) as call:
            call.output = X - np.float32(mean)

    result = compare_edited(tmp_path, program, {"mean": 0.5}, level="L0")
    assert (result.verdict.kind, named(result)) == ("entered", "Module.norm.BatchNorm1d.forward.0")
    assert "the buffer running_mean already differed before the call" in result.verdict.headline


# -------------------------------------------------------------------------------------------------- modules


def block(run: Recording, has_residual: bool = True, inner: float = 0.0) -> None:
    """At L0: a block that calls two modules and adds its input in its own code."""
    x = run.data(X)
    with run.module("", "Net", x) as net:
        with run.module("block", "Block", x) as outer:
            with run.module("block.attention", "Attention", x) as attention:
                attention.output = X @ W.T + np.float32(inner)
            hidden = attention.output.array + X if has_residual else attention.output.array
            with run.module("block.mlp", "MLP", run.data(hidden)) as mlp:
                mlp.output = np.tanh(hidden)
            outer.output = mlp.output.array * 2
        net.output = outer.output


def test_at_level_l0_the_innermost_module_is_named(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, block, {"inner": 0.1}, level="L0")
    assert named(result) == "Module.block.attention.Attention.forward.0"
    assert roles(result)["Module.block.Block.forward.0"] == "propagated"


def test_a_module_whose_own_code_is_wrong_is_named_not_the_module_that_it_calls_next(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, block, {"has_residual": False}, level="L0")
    assert (result.verdict.kind, named(result)) == ("source", "Module.block.Block.forward.0")
    assert "its own code passed a different input.0 to Module.block.mlp.MLP.forward.0" in result.verdict.headline


# -------------------------------------------------------------------------------------------------- special calls


def test_a_discrete_choice_of_close_inputs_is_a_discontinuity_not_a_source(tmp_path: Path) -> None:
    def program(run: Recording, noise: float = 0.0) -> None:
        a = run.api("Functional.linear", run.data(X), run.data(W), output=X @ W.T * np.float32(1 + noise))
        run.api("Torch.argmax", a, output=np.array([3 if noise else 2]))

    result = compare_edited(tmp_path, program, {"noise": 3e-7})
    assert (result.verdict.kind, named(result)) == ("discontinuity", "Torch.argmax.0.forward")
    same_inputs = Recording()
    program(same_inputs)
    wrong = Recording()
    program(wrong)
    wrong.files["Torch.argmax.0.forward.output.0.npy"] = np.array([3])
    assert compared(tmp_path / "wrong", same_inputs, wrong).verdict.kind == "source"


def random_call(run: Recording, mask: float = 1.0, state: str | None = None) -> None:
    fields = {"generator": state} if state else {}
    run.api("Functional.dropout", run.data(X), kwargs={"p": 0.5}, output=X * np.float32(mask), fields=fields)


def test_random_calls_are_told_by_the_state_of_their_generator(tmp_path: Path) -> None:
    def verdict(name: str, first: str | None, second: str | None) -> Any:
        reference, candidate = Recording(), Recording()
        random_call(reference, 1.0, first)
        random_call(candidate, 2.0, second)
        return compared(tmp_path / name, reference, candidate).verdict

    other_state = verdict("state", "aa", "bb")
    assert other_state.kind == "random" and "the generator was in a different state before it" in other_state.headline
    assert verdict("same", "aa", "aa").kind == "source"
    unknown = verdict("unknown", None, None)
    assert unknown.kind == "random" and "seed_all" in unknown.headline


def test_undefined_memory_is_never_compared(tmp_path: Path) -> None:
    def program(run: Recording, garbage: float = 1.0) -> None:
        fields = {"note": "undefined memory"}
        a = run.api("Torch.empty", 4, 8, output=np.full((4, 8), garbage, np.float32), fields=fields)
        run.api("Tensor.copy_", a, run.data(X), output=X)

    result = compare_edited(tmp_path, program, {"garbage": 5.0})
    assert result
    assert result.ranks[0].value_counts["not comparable"] == 2


def test_tensors_that_say_that_they_are_undefined_are_never_compared(tmp_path: Path) -> None:
    def program(run: Recording, garbage: float = 1.0) -> None:
        shown = run.api("Tensor.view", run.data(np.full((4, 8), garbage, np.float32)), output=np.full((32,), garbage))
        run.api("Torch.add", run.data(X), shown, output=X)
        view, add = run.records["Tensor.view.0.forward"], run.records["Torch.add.0.forward"]
        for leaf in (view["input_args"][0], view["output"][0], add["input_args"][1]):
            leaf["note"] = "undefined memory"

    result = compare_edited(tmp_path, program, {"garbage": 5.0})
    assert result
    assert result.ranks[0].value_counts == {"equal": 2, "not comparable": 3}
    assert {value.reason for call in result.ranks[0].calls for value in call.values} == {"", "undefined memory"}


def test_calls_of_the_optimizer_are_kept_out_of_the_verdict_but_not_out_of_sight(tmp_path: Path) -> None:
    def program(run: Recording, wrong: float = 0.0) -> None:
        three_calls(run)
        fields = {"caller": "optimizer"}
        run.api("Tensor.mul_", run.data(X), 0.9, output=X * np.float32(0.9 + wrong), fields=fields)

    result = compare_edited(tmp_path, program, {"wrong": 0.1})
    assert not result
    assert (
        "All calls of the program agree; the first difference is in a call of the optimizer" in result.verdict.headline
    )
    assert result.verdict.kind == "framework"
    assert summarize(result).matrix.kinds == {(0, "rank"): "framework"}  # not the word for a call of the program
    assert result.ranks[0].coverage.reference_calls == 3


# -------------------------------------------------------------------------------------------------- backward


def trained(run: Recording, factor: float = 1.0, hook: float = 1.0, has_gradient: bool = True) -> None:
    """y = relu(x W) + tanh(x W), and back."""
    x, w = run.data(X), run.data(W, requires_grad=True)
    a = run.api("Functional.linear", x, w, output=X @ W.T)
    b = run.api("Functional.relu", a, output=np.maximum(a.array, 0))
    c = run.api("Torch.tanh", a, output=np.tanh(a.array))
    run.api("Torch.add", b, c, output=b.array + c.array)
    one = np.ones_like(X)
    g = run.backward("Torch.add.0", run.data(one), [one, one])
    g_tanh = run.backward("Torch.tanh.0", g[1], one * (1 - np.tanh(a.array) ** 2) * np.float32(factor))
    if has_gradient:
        g_relu = run.backward("Functional.relu.0", g[0], (a.array > 0).astype(np.float32))
        total = (g_tanh.array + g_relu.array) * np.float32(hook)
    else:
        total = g_tanh.array
    run.backward("Functional.linear.0", run.data(total), [total @ W, total.T @ X])


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_wrong_gradient_with_a_right_forward_is_a_source_in_backward(tmp_path: Path, task: str) -> None:
    result = compare_edited(tmp_path, trained, {"factor": 0.5}, task)
    assert (result.verdict.kind, named(result)) == ("source", "Torch.tanh.0.backward")
    assert "first differ in backward" in result.verdict.headline
    assert roles(result)["Functional.linear.0.backward"] == "propagated"


def test_a_gradient_that_a_hook_changed_entered_there(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, trained, {"hook": 0.5})
    assert (result.verdict.kind, named(result)) == ("entered", "Functional.linear.0.backward")
    assert "it is the sum of gradients that agree" in result.verdict.headline


def test_a_gradient_that_never_comes_is_named(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, trained, {"has_gradient": False})
    assert result.verdict.kind == "missing"
    assert "Functional.relu.0.backward is only in the reference: no gradient reaches it" in result.verdict.headline


def test_a_run_without_any_backward_does_not_agree_with_one_that_has_it(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    for run in (reference, candidate):
        run.run["coverage"] = {"filtered": 0}
        trained(run)
    for name in [name for name in candidate.records if name.endswith("backward")]:
        del candidate.records[name]
    result = compared(tmp_path, reference, candidate)
    assert result.verdict.kind == "missing"
    assert result.verdict.headline.startswith("The forward agrees, but the candidate has no backward")


def test_parameter_gradients_are_compared(tmp_path: Path) -> None:
    def program(run: Recording, factor: float = 1.0) -> None:
        with run.module("fc", "Linear", run.data(X), parameters={"weight": run.data(W)}) as call:
            call.output = X @ W.T
        run.backward("Module.fc.Linear", run.data(X), X @ W)
        run.parameters_grad("Module.fc.Linear", weight=X.T @ X * np.float32(factor))

    result = compare_edited(tmp_path, program, {"factor": 0.5}, level="L0")
    assert named(result) == "Module.fc.Linear.parameters_grad"


def test_a_gradient_that_is_only_rounding_is_judged_by_the_size_of_its_terms(tmp_path: Path) -> None:
    """The sum of a thousand gradients that cancel is noise, in every run another."""
    many = RNG.standard_normal((1000, 8)).astype(np.float32)

    def program(run: Recording, rest: float = 1e-6) -> None:
        run.api("Functional.linear", run.data(many), run.data(W), output=many @ W.T)
        run.backward("Functional.linear.0", run.data(many), [None, None, np.full(8, rest, np.float32)])

    assert compare_edited(tmp_path, program, {"rest": -2e-6})
    assert not compare_edited(tmp_path / "wrong", program, {"rest": 1.0})


def test_a_parameters_gradient_of_rounding_alone_is_judged_by_what_came_back_to_its_module(tmp_path: Path) -> None:
    """The bias of the keys of an attention has no effect; at level L0 its terms show in the module's own backward."""
    many = RNG.standard_normal((1000, 8)).astype(np.float32)

    def program(run: Recording, rest: float = 1e-6) -> None:
        with run.module("key", "Linear", run.data(many), parameters={"weight": run.data(W)}) as call:
            call.output = many @ W.T
        run.backward("Module.key.Linear", run.data(many), many @ W)
        run.parameters_grad("Module.key.Linear", bias=np.full(8, rest, np.float32))

    assert compare_edited(tmp_path, program, {"rest": -2e-6}, level="L0")
    assert not compare_edited(tmp_path / "wrong", program, {"rest": 1.0}, level="L0")


# -------------------------------------------------------------------------------------------------- steps and ranks


def test_each_step_is_compared_with_its_partner_and_the_verdict_is_the_earliest(tmp_path: Path) -> None:
    for side in ("r", "c"):
        for step in range(3):
            run = Recording()
            three_calls(run, wrong=0.1 if side == "c" and step > 0 else 0.0)
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert [rank.verdict.kind for rank in result.ranks] == ["agree", "source", "source"]
    assert result.verdict.step == 1 and result.verdict.rank_name == "step1/rank"
    assert result.verdict.headline.endswith("its inputs agree, its result does not (step1/rank).")
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "c", step=0)
    assert not tensorprobe.compare(tmp_path / "r" / "step0", tmp_path / "c" / "step2")


def test_what_follows_from_an_earlier_step_is_not_another_source(tmp_path: Path) -> None:
    for side in ("r", "c"):
        for step in range(2):
            factor = np.float32(1.1 if side == "c" and step else 1.0)
            run = Recording()
            w = run.data(W * factor, requires_grad=True)
            run.api("Functional.linear", run.data(X), w, output=X @ w.array.T + np.float32(side == "c"))
            run.write(tmp_path / side, step)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert (result.verdict.step, result.verdict.kind) == (0, "source")
    later = result.ranks[1]
    assert later.verdict.headline.startswith("The step started from different parameters: the runs diverged earlier")
    assert not later.others


def test_ranks_are_paired_by_number_and_what_has_no_partner_is_said(tmp_path: Path) -> None:
    for side, ranks in (("r", (0, 1)), ("c", (0, 1, 2))):
        for rank in ranks:
            run = Recording()
            three_calls(run, wrong=0.1 if side == "c" and rank == 1 else 0.0)
            run.write(tmp_path / side, 0, f"rank{rank}")
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert [rank.verdict.kind for rank in result.ranks] == ["agree", "source"]
    assert result.verdict.rank_name == "step0/rank1"
    assert result.problems == ("step 0: rank 2: only in the candidate, not compared",)
    fewer = tensorprobe.compare(tmp_path / "r", tmp_path / "r" / "step0" / "rank0")
    assert fewer and "But step 0: rank 1: only in the reference, not compared" in fewer.verdict.headline


def test_noise_of_an_earlier_step_explains_other_parameters_in_the_next(tmp_path: Path) -> None:
    def write(side: str, noise: float, parameter_noise: float) -> None:
        for step in range(2):
            w = W * np.float32(1 + (parameter_noise if step else 0.0))
            run = Recording()
            run.api("Functional.linear", run.data(X), run.data(w, True), output=X @ w.T * np.float32(1 + noise))
            run.write(tmp_path / side, step)

    write("r", 0.0, 0.0)
    write("noisy", 3e-7, 5e-5)
    write("wrong", 0.0, 5e-5)
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "noisy")
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "wrong").verdict.step == 1


def test_first_stops_at_the_first_source(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    three_calls(reference)
    three_calls(candidate, wrong=0.1)
    result = compared(tmp_path, reference, candidate, first=True)
    assert named(result) == "Functional.relu.0.forward"
    assert result.ranks[0].is_cut_short and len(result.ranks[0].calls) == 2


# -------------------------------------------------------------------------------------------------- broken dumps


def test_a_missing_tensor_file_is_one_row_and_not_the_end(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    three_calls(reference)
    three_calls(candidate, wrong=0.1)
    reference.write(tmp_path / "r")
    candidate.write(tmp_path / "c")
    (tmp_path / "c/step0/rank/dump_tensor_data/Functional.linear.0.forward.input.1.npy").unlink()
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert named(result) == "Functional.relu.0.forward"
    lost = result.ranks[0].calls[0].values[1]
    assert (lost.status, lost.reason) == ("equal", "Functional.linear.0.forward.input.1.npy is missing")


def without_file(tmp_path: Path, run: Recording, name: str, steps: tuple[int, ...] = (0,)) -> tuple[Path, Path]:
    """The same run twice; one tensor file of the candidate is lost."""
    for step in steps:
        for side in "rc":
            run.write(tmp_path / side, step)
        (tmp_path / f"c/step{step}/rank/dump_tensor_data/{name}").unlink()
    return tmp_path / "r", tmp_path / "c"


def test_an_agreement_says_what_agrees_only_by_its_record(tmp_path: Path) -> None:
    run = Recording()
    three_calls(run)
    paths = without_file(tmp_path, run, "Functional.relu.0.forward.output.0.npy", (0, 1))
    whole, one = (tensorprobe.compare(*paths, step=step) for step in (None, 0))
    assert one and whole
    assert "all 8 values agree, 8 of them equal; 1 only by their records: Functional.relu.0.forward" in (
        one.verdict.headline
    )
    assert "6 calls, 16 values; 2 only by their records" in whole.verdict.headline
    assert one.ranks[0].bases == {"tensor": 7, "statistics": 1}


def test_what_was_recorded_of_a_lost_tensor_can_contradict(tmp_path: Path) -> None:
    run = Recording()
    three_calls(run)
    run.write(tmp_path / "r")
    run.records["Functional.relu.0.forward"]["output"][0]["Max"] = 99999
    run.write(tmp_path / "c")
    (tmp_path / "c/step0/rank/dump_tensor_data/Functional.relu.0.forward.output.0.npy").unlink()
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert named(result) == "Functional.relu.0.forward" and result.verdict.kind == "source"
    assert any(
        line.startswith("result output.0: differs: Functional.relu.0.forward.output.0.npy is missing, relative error")
        and line.endswith("by statistics only")
        for line in result.verdict.evidence
    )


def test_a_permutation_in_a_lost_tensor_shows_in_the_call_that_takes_it(tmp_path: Path) -> None:
    for side in "rc":
        run = Recording()
        a = run.api("Functional.relu", run.data(X), output=X if side == "r" else X[::-1])
        run.api("Functional.linear", a, run.data(W), output=a.array @ W.T)
        run.write(tmp_path / side)
    (tmp_path / "c/step0/rank/dump_tensor_data/Functional.relu.0.forward.output.0.npy").unlink()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "entered"
    assert "what Functional.relu.0.forward returned agrees, but only by its record (" in verdict.headline


@pytest.mark.parametrize("name", ["x" * 300, "\ud800.npy", "loop.npy"])
def test_a_name_that_no_file_can_have_is_one_row_and_not_the_end(tmp_path: Path, name: str) -> None:
    reference, candidate = Recording(), Recording()
    three_calls(reference)
    three_calls(candidate)
    candidate.records["Functional.relu.0.forward"]["input_args"][0]["data_name"] = name
    reference.write(tmp_path / "r")
    (candidate.write(tmp_path / "c") / "step0/rank/dump_tensor_data/loop.npy").symlink_to("loop.npy")
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    value = result.ranks[0].calls[1].values[0]
    assert value.status == "equal" and value.reason
    assert value.measurement is not None and value.measurement.basis == "statistics"


def test_numbers_beyond_all_reason_are_taken_as_absent(tmp_path: Path) -> None:
    huge = 10**400
    reference, candidate = Recording("statistics"), Recording("statistics")
    three_calls(reference)
    three_calls(candidate, wrong=0.1)
    for run in (reference, candidate):
        record = run.records["Functional.relu.0.forward"]
        record["output"][0] |= {"Max": huge, "Norm": -huge, "Mean": huge}
        record["input_args"][0] |= {"shape": [huge], "nan_count": huge}
        run.records["Functional.linear.1.forward"]["output"][0]["shape"] = [-1, 2**62, 2**62]
    assert compared(tmp_path, reference, candidate).ranks


def test_a_call_whose_result_cannot_be_read_is_not_called_clean(tmp_path: Path) -> None:
    run = Recording()
    three_calls(run)
    forget_statistics(run)
    result = tensorprobe.compare(*without_file(tmp_path, run, "Functional.relu.0.forward.output.0.npy"))
    assert roles(result)["Functional.relu.0.forward"] == "not compared"


def test_a_run_that_was_cut_off_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    three_calls(reference)
    three_calls(candidate)
    candidate.records.pop("Functional.linear.1.forward")
    candidate.run["complete"] = False
    result = compared(tmp_path, reference, candidate)
    assert result
    assert result.verdict.headline.startswith("The runs agree as far as the candidate goes, which ended early: 2 calls")
    assert any("the step was not finished" in problem for problem in result.ranks[0].problems)
    assert [unpaired.call.name for unpaired in result.ranks[0].only_reference] == ["Functional.linear.1.forward"]


@pytest.mark.parametrize("how", [{"complete": False}, {"ended": "KeyboardInterrupt"}])
def test_a_backward_that_was_cut_off_lacks_no_gradient(tmp_path: Path, how: dict[str, Any]) -> None:
    reference, candidate = Recording(), Recording()
    trained(reference)
    trained(candidate)
    for name in ("Functional.relu.0.backward", "Functional.linear.0.backward"):
        candidate.records.pop(name)
    candidate.run |= how
    assert compared(tmp_path, reference, candidate).verdict.kind == "agree"


def test_a_gradient_that_never_came_before_the_cut_is_named(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    trained(reference)
    trained(candidate)
    candidate.records.pop("Torch.tanh.0.backward")
    candidate.records.pop("Functional.linear.0.backward")
    candidate.run["complete"] = False
    verdict = compared(tmp_path, reference, candidate).verdict
    assert verdict.kind == "missing" and "Torch.tanh.0.backward" in verdict.headline


def test_circumstances_that_differ_are_listed(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    three_calls(reference)
    three_calls(candidate)
    candidate.run["versions"] = {"torch": "2.11.0"}
    result = compared(tmp_path, reference, candidate)
    assert result.ranks[0].circumstances == (("versions.torch", "2.13.0", "2.11.0"),)


def test_nothing_in_common_is_not_agreement(tmp_path: Path) -> None:
    reference, candidate = Recording(), Recording()
    reference.api("Torch.exp", reference.data(X), output=np.exp(X))
    candidate.api("Torch.argmax", candidate.data(X[0]), output=np.array(3))
    result = compared(tmp_path, reference, candidate)
    assert result.verdict.kind == "not compared" and not result


def test_structure_alone_is_not_agreement(tmp_path: Path) -> None:
    result = compare_edited(tmp_path, three_calls, {}, "structure")
    assert result.verdict.kind == "not compared"
    assert "shapes and arguments agree" in result.verdict.headline


def test_wrong_arguments_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="does not exist"):
        tensorprobe.compare(tmp_path / "nowhere", tmp_path / "nowhere")
    with pytest.raises(UsageError, match="rtol is -1"):
        tensorprobe.compare(tmp_path, tmp_path, rtol=-1)
    with pytest.raises(UsageError, match="step is '0'"):
        tensorprobe.compare(tmp_path, tmp_path, step="0")
    with pytest.raises(UsageError, match="rank is"):
        tensorprobe.compare(tmp_path, tmp_path, rank=[0, 1])
    with pytest.raises(UsageError, match="processes is '2'"):
        tensorprobe.compare(tmp_path, tmp_path, processes="2")
    with pytest.raises(UsageError, match="atol is 'small'"):
        tensorprobe.compare(tmp_path, tmp_path, atol="small")
    with pytest.raises(UsageError, match=r"allow_uncompared is 1\. Give True or False"):
        tensorprobe.compare(tmp_path, tmp_path, allow_uncompared=1)
    with pytest.raises(UsageError, match=r"tolerance.*is not an option.*rtol"):
        tensorprobe.compare(tmp_path, tmp_path, tolerance=1)
