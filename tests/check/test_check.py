"""`check` and `assert_runs_agree`, with real models, and what they leave behind: nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorprobe
from tensorprobe.errors import UsageError
from tests.check.network import make_input, make_network
from tests.cli.command import run_here


def test_a_model_agrees_with_itself_bit_for_bit_although_it_draws_random_numbers() -> None:
    model = make_network()
    result = tensorprobe.check(model, model, make_input())
    assert result
    assert result.verdict.headline.endswith("bit for bit.")
    assert (result.reference, result.candidate) == ("reference", "candidate")


def test_forward_and_backward_of_a_model_are_compared() -> None:
    model = make_network()
    names = {call.name for call in tensorprobe.check(model, model, make_input()).ranks[0].calls}
    assert {"Module.norm.LayerNorm.forward.0", "Functional.layer_norm.0.backward"} <= names
    assert "Module.first.Linear.parameters_grad" in names


def test_a_planted_fault_is_named_with_its_lines() -> None:
    result = tensorprobe.check(make_network(), make_network(eps=0.1), make_input())
    assert not result
    assert result.verdict.headline == (
        "The runs first differ at Functional.layer_norm.0.forward in module norm: "
        "called with eps=0.1 where the reference had 1e-05."
    )
    assert any("network.py" in line for line in result.verdict.evidence)


def test_two_functions_that_mean_the_same_agree() -> None:
    assert tensorprobe.check(
        lambda x: torch.softmax(x, -1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), make_input()
    )


def test_a_function_that_sums_over_the_wrong_dimension_differs() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.exp().sum(0, keepdim=True)

    assert not tensorprobe.check(lambda x: torch.softmax(x, -1), wrong, make_input())


def test_float32_and_bfloat16_of_one_model_agree_and_the_model_stays_float32() -> None:
    model = make_network().eval()
    result = tensorprobe.check(model, model, make_input(), dtype=torch.bfloat16)
    assert result, result.verdict
    assert "What remains is rounding" in result.verdict.headline
    dtypes = [value.candidate.dtype for value in result.ranks[0].calls[0].values if value.is_tensor]  # type: ignore[union-attr]
    assert set(dtypes) == {"torch.bfloat16"}
    assert model.first.weight.dtype is torch.float32


def test_a_fault_is_named_across_two_dtypes() -> None:
    model, wrong = make_network().eval(), make_network(eps=0.5).eval()
    result = tensorprobe.check(model, wrong, make_input(), dtype=torch.bfloat16)
    assert result.verdict.call is not None
    assert result.verdict.call.name == "Functional.layer_norm.0.forward"


def test_a_method_of_a_model_is_converted_with_its_model() -> None:
    class WithLoss(nn.Linear):
        def loss(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is self.weight.dtype
            return self(x).square().mean()

    model = WithLoss(8, 2)
    assert tensorprobe.check(model.loss, model.loss, make_input(), dtype=torch.float64)


def test_the_candidate_runs_under_the_given_setting_and_the_reference_does_not() -> None:
    seen = []

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return F.linear(x, weight)

    setting = torch.autocast("cpu", torch.bfloat16)
    assert tensorprobe.check(function, function, make_input(), torch.eye(8), setting=setting)
    assert seen == [False, True]


def test_eager_and_compiled_agree_and_a_fault_in_the_compiled_one_is_found() -> None:
    """The backend that needs no compiler: what is compared is the same, one call in the place of many."""
    model, wrong = make_network().eval(), make_network(eps=0.5).eval()
    agreed = tensorprobe.check(model, torch.compile(model, backend="aot_eager"), make_input())
    assert agreed, agreed.verdict
    torch._dynamo.reset()
    found = tensorprobe.check(model, torch.compile(wrong, backend="aot_eager"), make_input())
    assert found.verdict.kind == "source"
    assert "Jit.Network.0.forward" in found.verdict.headline


@pytest.mark.long
def test_eager_agrees_with_what_the_default_backend_of_compile_makes_on_a_device_of_its_own() -> None:
    """Its kernels round in their own order. Without a compiler for C++ there is none of them."""
    backend = "inductor" if shutil.which("g++") else "aot_eager"
    model, wrong = make_network().eval(), make_network(eps=0.5).eval()
    agreed = tensorprobe.check(model, torch.compile(model, backend=backend), make_input(), device="cpu")
    assert agreed, agreed.verdict
    torch._dynamo.reset()
    found = tensorprobe.check(model, torch.compile(wrong, backend=backend), make_input(), device="cpu")
    assert found.verdict.kind == "source" and "Jit.Network.0.forward" in found.verdict.headline


def test_on_a_device_the_candidate_is_a_copy_and_the_model_stays_where_it_is() -> None:
    model = make_network().eval()
    found = tensorprobe.check(model, model, make_input(), device=torch.device("cpu"))
    assert found and found.verdict.headline.endswith("bit for bit.")
    with pytest.raises(UsageError, match=r"^the candidate and its inputs cannot be converted to device='neverland': "):
        tensorprobe.check(model, model, make_input(), device="neverland")


def test_what_is_returned_counts_although_no_call_takes_it() -> None:
    found = tensorprobe.check(torch.exp, lambda x: torch.exp(x).flip(0), make_input(), by="growth")
    assert not found


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (lambda x: x.long() // 2, lambda x: x.long() // 3),
        (lambda x: (x * 2, x > 0), lambda x: (x * 2, x > 1)),
        (lambda x: x.sum().item(), lambda x: x.sum().item() + 1),
        (lambda x: {"scores": x * 2, "count": 3}, lambda x: {"scores": x * 2, "count": 4}),
        (lambda x: [x * 2], lambda x: [x * 2, x * 2]),
        (lambda x: {"low": x * 2, "high": x * 3}, lambda x: {"low": x * 2, "top": x * 3}),
        (lambda x: {"low": 1, "high": {"a": x}}, lambda x: {"low": 1, "high": {"b": x}}),
        (lambda x: {"low": x * 2, "high": x * 3}, lambda x: {"high": x * 2, "low": x * 3}),
        (lambda x: {"low": x * 2, "high": x * 2 + 1}, lambda x: {"high": x * 2, "low": x * 2 + 1}),
    ],
    ids=[
        "integers",
        "booleans",
        "a Python number",
        "a number beside a tensor",
        "one result more",
        "another key",
        "another key inside",
        "swapped keys",
        "swapped keys, one made of the other",
    ],
)
def test_results_that_no_replay_computes_count_too(reference: Any, candidate: Any) -> None:
    x = torch.linspace(-4, 9, 12)
    assert tensorprobe.check(reference, reference, x)
    assert not tensorprobe.check(reference, candidate, x)


def test_the_keys_that_only_one_side_returns_are_named() -> None:
    x = torch.linspace(-4, 9, 12)
    found = tensorprobe.check(lambda x: {"a": x, "b": x * 3}, lambda x: {"a": x, "c": x * 3}, x)
    assert found.verdict.headline == "The runs first differ at result.0.debug: the saved value differs."
    assert found.verdict.evidence[:2] == (
        "result b: differs: only in the reference",
        "result c: differs: only in the candidate",
    )


def test_a_list_may_stand_for_a_tuple_or_a_dict() -> None:
    x = torch.linspace(-4, 9, 12)
    assert tensorprobe.check(lambda x: (x * 2, x * 3), lambda x: [x * 2, x * 3], x)
    assert tensorprobe.check(lambda x: (x * 2,), lambda x: {"logits": x * 2}, x)


def test_a_python_number_may_have_the_rounding_of_its_run() -> None:
    model, x = torch.nn.Linear(16, 8), torch.randn(4, 16)

    def loss_of(network: Any, x: Any) -> float:
        return float(network(x).square().mean().item())

    assert tensorprobe.check(loss_of, loss_of, model, x, dtype=torch.bfloat16)


def test_a_result_that_is_a_number_is_the_loss() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = model(x)
        return {"loss": logits.square().mean(), "logits": logits}

    model = make_network()
    calls = tensorprobe.check(step, step, model, make_input()).ranks[0].calls
    assert any(call.name == "Tensor.mean.0.backward" for call in calls)


def test_the_loss_can_be_given() -> None:
    model = make_network()
    result = tensorprobe.check(model, model, make_input(), loss=lambda y: y.square().mean())
    assert any(call.name == "Tensor.square.0.backward" for call in result.ranks[0].calls)


def test_a_layer_norm_has_gradients_although_the_sum_of_its_result_has_none() -> None:
    norm = nn.LayerNorm(8)
    calls = {call.name: call for call in tensorprobe.check(norm, norm, make_input()).ranks[0].calls}
    gradients = calls["Module.LayerNorm.parameters_grad"].values
    assert all(value.reference.norm > 0.1 for value in gradients)  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"backward": False}, {"backward": False, "level": "L0"}])
def test_without_backward_only_the_forward_is_compared(options: dict[str, Any]) -> None:
    model = make_network()
    calls = tensorprobe.check(model, model, make_input(), **options).ranks[0].calls
    assert calls
    assert not [call for call in calls if "backward" in call.name or "grad" in call.name]


def test_a_training_step_that_runs_its_own_backward_is_not_differentiated_again() -> None:
    model = make_network()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert tensorprobe.check(train, train, make_input())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def _train(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _differentiate_input(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = (x.requires_grad_() * 2).square().sum()
    loss.backward()
    return loss


def _ask_for_gradients(model: nn.Module, x: torch.Tensor) -> Any:
    loss = model(x).square().mean()
    return loss, torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("function", [_train, _differentiate_input, _ask_for_gradients])
def test_a_backward_pass_of_the_functions_own_is_known_wherever_its_gradients_are(function: Any) -> None:
    assert tensorprobe.check(function, function, make_network(), make_input())


def test_a_gradient_on_the_way_to_the_loss_is_not_the_end() -> None:
    """As in a gradient penalty, and where an input is moved along its gradient first."""

    def penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(model(x.requires_grad_()).sum(), x, create_graph=True)
        (other,) = torch.autograd.grad(model(x).sum(), x)
        return (model(x + other.sign()) + gradient.sum(1, keepdim=True)).square().mean()

    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    calls = tensorprobe.check(penalty, penalty, model, make_input()).ranks[0].calls
    assert any(call.name == "Tensor.mean.0.backward" for call in calls)


def test_a_model_without_numbers_raises_nothing() -> None:
    model = nn.Linear(4, 4, device="meta")
    assert not tensorprobe.check(model, model, torch.empty(2, 4, device="meta"))


def test_the_callers_models_inputs_gradients_and_random_states_are_left_as_they_were() -> None:
    model, x = make_network(), make_input().requires_grad_()
    model(x).sum().backward()
    leaf = torch.ones(4, requires_grad=True)  # in no model
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: (value.grad, value.grad.clone()) for name, value in model.named_parameters()}
    gradient, content = x.grad, x.detach().clone()
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def careless(x: torch.Tensor) -> torch.Tensor:
        model.eval()
        model.batch.running_mean = torch.zeros(16)
        torch.rand(3), random.random(), np.random.rand()
        x.data.add_(1)
        return model(x) * leaf

    assert tensorprobe.check(careless, careless, x)
    assert model.training and model.norm.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    for name, value in model.named_parameters():
        assert value.grad is gradients[name][0] and torch.equal(value.grad, gradients[name][1])
    assert x.grad is gradient and torch.equal(x, content) and leaf.grad is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_inputs_by_keyword_and_in_containers_reach_both_sides() -> None:
    def function(pair: tuple[torch.Tensor, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
        assert pair[0] is pair[1]
        return pair[0] * pair[1] * scale

    x = make_input()
    assert tensorprobe.check(function, function, (x, x), kwargs={"scale": torch.tensor(2.0)})


def test_an_exception_says_on_which_side_it_was() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("a shape that does not fit")

    with pytest.raises(UsageError, match=r"^the candidate raised ValueError: a shape that does not fit$") as caught:
        tensorprobe.check(torch.exp, fails, make_input())
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(UsageError, match=r"^the reference raised ValueError"):
        tensorprobe.check(fails, torch.exp, make_input())


def test_the_dumps_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    result = tensorprobe.check(torch.exp, torch.exp, make_input(), keep=tmp_path / "runs")
    assert result.reference == str(tmp_path / "runs" / "reference")
    assert tensorprobe.compare(tmp_path / "runs" / "reference", tmp_path / "runs" / "candidate")


def test_nothing_is_said_of_dumps_that_are_removed(capfd: pytest.CaptureFixture[str]) -> None:
    tensorprobe.check(torch.exp, torch.exp, make_input())
    assert "Next: tensorprobe show" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levle": "L1"}, "'levle' is not an option of check. Options: kwargs, loss, backward, level"),
        ({"backward": "no"}, "backward is 'no'. Give True or False"),
        ({"loss": 3}, "loss is 3. Give a function of what both sides return"),
        ({"kwargs": [1]}, "kwargs is [1]. Give a dict of names and inputs"),
        ({"setting": 1}, "setting is 1. Give a context manager in which the candidate runs"),
        ({"by": "luck"}, "by is 'luck'. Give one of auto, truth, growth"),
    ],
)
def test_a_wrong_option_says_what_to_give(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tensorprobe.check(torch.exp, torch.exp, make_input(), **options)
    assert message in str(caught.value)


def test_what_cannot_be_called_says_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"the candidate is 3 of type int\. Give a model or a function"):
        tensorprobe.check(torch.exp, 3, make_input())  # type: ignore[arg-type]


def test_the_assertion_is_the_verdict_with_its_evidence() -> None:
    with pytest.raises(AssertionError) as caught:
        tensorprobe.assert_runs_agree(make_network(), make_network(eps=0.1), make_input())
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("The runs first differ at Functional.layer_norm.0.forward in module norm")
    assert "  input kwargs.eps: differs: 0.1 where the reference had 1e-05" in lines


def test_two_dumps_can_be_asserted_to_agree(tmp_path: Path) -> None:
    for name, eps in (("one", 1e-5), ("same", 1e-5), ("other", 0.1)):
        model = make_network(eps).eval()
        with tensorprobe.capture(model, tmp_path / name):
            model(make_input())
    assert tensorprobe.assert_runs_agree(tmp_path / "one", str(tmp_path / "same"))
    with pytest.raises(AssertionError, match=r"^The runs first differ at Functional\.layer_norm\.0\.forward"):
        tensorprobe.assert_runs_agree(tmp_path / "one", tmp_path / "other")


def test_a_dump_and_a_function_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"takes two dumps \(paths\) and no inputs, or two models or functions"):
        tensorprobe.assert_runs_agree(tmp_path, torch.exp)


def test_of_one_call_and_one_value_everything_is_said_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("reference", "candidate"):
        with tensorprobe.capture(None, tmp_path / name, level="L1", task="tensor"):
            torch.full((3,), 2.0)
    told = run_here(capsys, "compare", tmp_path / "reference", tmp_path / "candidate").stdout
    told += run_here(capsys, "show", tmp_path / "reference").stdout
    told += run_here(capsys, "truth", tmp_path / "reference").stdout
    assert "The runs agree: 1 call is paired, and 1 value agrees, bit for bit." in told
    assert "1 call of the reference and 1 of the candidate have a partner" in told
    assert "1 tensor was compared" in told
    assert "1 call seen" in told
    assert "nothing is wrong. The 1 call computes what it should." in told


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_compiled_model_in_another_dtype_agrees(dtype: torch.dtype) -> None:
    """A compiled region cannot be executed again; that it has the dtype that was asked for is no difference."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    found = tensorprobe.check(model, torch.compile(model, backend="aot_eager"), torch.randn(5, 8), dtype=dtype)
    assert found, found.verdict.headline


def test_a_fault_in_a_compiled_model_of_another_dtype_is_found() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    faulty = torch.nn.Sequential(model[0], torch.nn.Identity(), model[2])
    found = tensorprobe.check(
        model, torch.compile(faulty, backend="aot_eager"), torch.randn(5, 8), dtype=torch.bfloat16
    )
    assert not found


def test_another_dtype_that_nobody_asked_for_is_a_difference() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    found = tensorprobe.check(
        model, lambda x: model(x).to(torch.bfloat16), torch.randn(5, 8), by="growth", backward=False
    )
    assert not found
