"""Programs that use autograd and modules in every way: nothing changes when they are recorded, and what is recorded is
complete and right."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.recorder import EARLIER_PASS
from tensorprobe.capture.torch.gradient import is_in_backward
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.verification import VerifyingReader
from tests.capture.torch.autograd_programs import AUTOGRAD_PROGRAMS, Built
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.models import MODELS
from tests.capture.torch.test_gradient import find_name, replay
from tests.capture.torch.training import Observed, difference, open_session

WAYS: list[dict[str, Any]] = [{}, {"task": "tensor"}, {"task": "structure"}, {"summary_mode": "md5"}]


def build(name: str) -> Built:
    torch.manual_seed(1)
    built = AUTOGRAD_PROGRAMS[name]()
    torch.manual_seed(2)
    return built


@cache
def plain(name: str) -> Observed:
    observed = build(name)[1]()
    return {**observed, "generator": torch.get_rng_state()}


def record(name: str, tmp_path: Path, level: str, **way: Any) -> tuple[DumpOnDisk, nn.Module, Observed]:
    model, run = build(name)
    session = open_session(tmp_path, level=level, **way)
    session.start(model)
    observed = run()
    session.close()
    return only_step(tmp_path), model, {**observed, "generator": torch.get_rng_state()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", AUTOGRAD_PROGRAMS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()) or "statistics")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.some(3)  # each program at each level, each level in each way
def test_nothing_changes_when_it_is_recorded(name: str, level: str, way: dict[str, Any], tmp_path: Path) -> None:
    step, _, observed = record(name, tmp_path, level, **way)
    assert difference(plain(name), observed) == []
    assert step.read("run.json")["coverage"]["failed"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", sorted(set(AUTOGRAD_PROGRAMS) - {"function_transforms", "torch_autograd_grad"}))
def test_every_parameter_gradient_is_recorded_as_it_is(name: str, level: str, tmp_path: Path) -> None:
    step, model, _ = record(name, tmp_path, level, task="tensor")
    checked = 0
    for path, parameter in model.named_parameters():
        module, _, word = path.rpartition(".")
        if parameter.grad is None:
            continue
        recorded = step.tensor(step.records[find_parameters_grad(step, module)][word][0])
        assert torch.equal(recorded.to_dense(), parameter.grad.to_dense()), path
        checked += 1
    assert checked


def find_parameters_grad(step: DumpOnDisk, module: str) -> str:
    return find_name(step, module, "parameters_grad") if module else "Module.Linear.parameters_grad"


REPLAYED = ["a_shared_module", "containers", "views_and_slices", "saved_tensor_hooks", "evaluation", "tied_weights"]
REPLAYED += ["backward_twice_and_accumulation", "parametrized_weights"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REPLAYED)
def test_every_gradient_of_a_call_equals_that_of_the_call_on_its_own(name: str, tmp_path: Path) -> None:
    step, _, _ = record(name, tmp_path, "L1", task="tensor")
    names = [key for key in step.records if key.endswith(".backward") and "dropout" not in key and "_norm" not in key]
    assert sum(replay(step, key) for key in names) >= 2


@pytest.mark.parametrize("name", ["double_backward", "backward_of_a_backward", "backward_twice_and_accumulation"])
def test_passes_that_a_later_one_replaced_are_counted(name: str, tmp_path: Path) -> None:
    step, _, _ = record(name, tmp_path, "mix")
    assert step.read("run.json")["coverage"]["unseen"][EARLIER_PASS] >= 4


@pytest.mark.parametrize("name", ["double_backward", "backward_of_a_backward"])
def test_the_second_derivative_that_flows_through_a_call_is_part_of_its_gradients(name: str, tmp_path: Path) -> None:
    step, model, _ = record(name, tmp_path, "L1", task="tensor")
    for number, layer in enumerate((model[0], model[2])):
        weight = step.tensor(step.records[f"Functional.linear.{number}.backward"]["output"][1])
        assert torch.equal(weight, layer.weight.grad)


# -- what the records of modules hold ----------------------------------------------------------------------------------


def test_each_call_of_a_shared_module_is_a_record_with_its_own_gradients(tmp_path: Path) -> None:
    step, model, _ = record("a_shared_module", tmp_path, "mix", task="tensor")
    calls = [f"Module.0.Linear.{{}}.{number}" for number in range(4)]
    assert not any(name.startswith("Module.2.") for name in step.records)
    shares = torch.zeros(4, 4)
    for number, call in enumerate(calls):
        (incoming,) = step.tensors(step.records[call.format("backward")]["input"])
        (given,) = step.tensors(step.records[call.format("forward")]["input_args"])
        shares += incoming.T @ given
        assert step.parents[f"Functional.linear.{number}.forward"] == call.format("forward")
        assert step.parents[f"Functional.linear.{number}.backward"] == call.format("backward")
    assert torch.allclose(shares, model[0].weight.grad, atol=1e-5)


def test_tied_weights_have_the_gradient_of_both_uses(tmp_path: Path) -> None:
    step, model, _ = record("tied_weights", tmp_path, "mix", task="tensor")
    embedding = step.tensor(step.records["Functional.embedding.0.backward"]["output"][1])
    linear = step.tensor(step.records["Functional.linear.0.backward"]["output"][1])
    assert torch.allclose(embedding + linear, model[0].weight.grad)
    recorded = [name for name in step.records if name.endswith("parameters_grad")]
    assert recorded == ["Module.0.Embedding.parameters_grad"]


def test_keywords_dicts_dataclasses_and_none_keep_their_nesting(tmp_path: Path) -> None:
    step, _, observed = record("containers", tmp_path, "mix", task="tensor")
    fields = step.records["Module.inner.Containers.forward.0"]
    given = fields["input_kwargs"]
    assert given["parts"]["key"][0]["data_name"] == "Module.inner.Containers.forward.0.kwargs.parts.key.0.pt"
    assert given["result"]["first"]["Norm"] == given["parts"]["key"][0]["Norm"] == fields["input_args"][0]["Norm"]
    assert given["result"]["number"] == {"type": "int", "value": 3}
    (result,) = fields["output"]
    twice, nothing = result["rest"]["twice"]
    assert nothing is None
    assert result["rest"]["text"] == {"type": "str", "value": "text"}
    assert torch.equal(step.tensor(twice), step.tensor(result["first"]) * 2)
    backward = step.records["Module.inner.Containers.backward.0"]
    (incoming,) = step.tensors(backward["input"])
    twice_gradient, nothing = incoming["rest"]["twice"]
    assert nothing is None and torch.equal(twice_gradient[:, [0, 3]], torch.zeros(3, 2))
    assert torch.equal(incoming["first"], 1 + 2 * twice_gradient)  # the second result was made of the first
    shares = [backward["output"][0], backward["output_kwargs"]["parts"]["key"][0]]
    total = sum(step.tensor(leaf) for leaf in (*shares, backward["output_kwargs"]["result"]["first"]) if leaf)
    assert torch.allclose(total, observed["x"], atol=1e-5)
    assert not any("unused" in name for name in step.records)


def test_custom_functions_record_the_gradients_of_their_arguments(tmp_path: Path) -> None:
    step, _, observed = record("custom_functions", tmp_path, "L1", task="tensor")
    product = step.records["Autograd.Product.0.forward"]
    assert [leaf and leaf.get("type") for leaf in product["output"]] == ["torch.Tensor", "torch.Size", "str", None]
    by_x, by_w = step.tensors(step.records["Autograd.Product.0.backward"]["output"])
    assert torch.equal(by_w, observed["w"])
    by_scaled, by_factor = step.tensors(step.records["Autograd.Scaling.0.backward"]["output"])
    assert by_factor is None and torch.equal(by_scaled, by_x * 3)
    before, after = (
        step.tensors(step.records["Autograd.Scaling.0.forward"][key])[0] for key in ("input_args", "output")
    )
    assert torch.equal(before * 3, after)
    incoming, nothing = step.tensors(step.records["Autograd.Exponential.0.backward"]["input"])
    assert nothing is None and torch.equal(incoming, torch.ones(3, 4))


def test_calls_inside_a_function_transform_are_recorded_or_say_why_not(tmp_path: Path) -> None:
    step, _, _ = record("function_transforms", tmp_path, "mix")
    leaves = [
        fields["input_args"][0] for name, fields in step.records.items() if ".linear." in name and "forward" in name
    ]
    reasons = {leaf.get("reason") for leaf in leaves}
    assert reasons == {None, "inside a function transform"}
    assert all((leaf.get("Norm") is None) == ("reason" in leaf) for leaf in leaves)


def test_evaluation_has_no_backward(tmp_path: Path) -> None:
    step, _, _ = record("evaluation", tmp_path, "mix")
    calls = [name for name in step.records if name.startswith("Functional.linear")]
    assert calls == [*(f"Functional.linear.{number}.forward" for number in range(4)), "Functional.linear.3.backward"]
    assert [name for name in step.records if "backward" in name and "Sequential" in name] == [
        "Module.Sequential.backward.3"
    ]


def test_one_backward_record_that_fails_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = TorchReader.read

    def read(reader: TorchReader, tensor: torch.Tensor, produced_by: str | None) -> Any:
        if tensor.shape == (7,) and is_in_backward():
            raise RuntimeError("no")
        return original(reader, tensor, produced_by)

    monkeypatch.setattr(VerifyingReader, "read", read)
    monkeypatch.setattr(TorchReader, "read", read)
    session = open_session(tmp_path, level="L1")
    x = torch.randn(7, requires_grad=True)
    session.start()
    torch.split(torch.exp(torch.exp(x)[:5]), 3)[0].sum().backward()
    session.close()
    step = only_step(tmp_path)
    assert {"Torch.exp.1.backward", "Torch.split.0.backward"} <= step.records.keys()
    assert step.read("run.json")["coverage"]["failed"] > 0


# -- generate ----------------------------------------------------------------------------------------------------------

GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "greedy without a cache": {"do_sample": False, "use_cache": False},
    "sampling": {"do_sample": True, "top_k": 5, "temperature": 0.7},
    "beams": {"num_beams": 3, "do_sample": False},
}


@cache
def language_model() -> nn.Module:
    torch.manual_seed(0)
    model = MODELS["llama"]()[0].eval()
    model.generate(input_ids=torch.tensor([[1]]), max_new_tokens=1, pad_token_id=0)  # what is imported may draw numbers
    return model


def generate(options: dict[str, Any]) -> Observed:
    model = language_model()
    torch.manual_seed(5)
    tokens = torch.tensor([[3, 5, 7, 9], [1, 2, 3, 4]])
    result = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=4,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    logits = {f"logits {number}": tensor for number, tensor in enumerate(result.logits)}
    return {"tokens": result.sequences, **logits, "generator": torch.get_rng_state()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("options", GENERATIONS.values(), ids=GENERATIONS)
@pytest.mark.some(2)
def test_a_language_model_generates_the_same_while_it_is_recorded(
    tmp_path: Path, options: dict[str, Any], level: str
) -> None:
    reference = generate(options)
    session = open_session(tmp_path, level=level)
    session.start(language_model())
    captured = generate(options)
    session.close()
    assert difference(reference, captured) == []
    step = only_step(tmp_path)
    coverage = step.read("run.json")["coverage"]
    assert (coverage["failed"], coverage["unseen"]) == (0, {})
    if level == "L1":
        return
    steps = [fields for name, fields in step.records.items() if name.startswith("Module.LlamaForCausalLM.forward")]
    assert len(steps) == 4
    for number, fields in enumerate(steps):
        (output,) = fields["output"]
        last = reference[f"logits {number}"]
        assert output["logits"]["shape"][0] == last.shape[0] and output["logits"]["Max"] >= last.max().item() - 1e-6
        if options.get("use_cache", True):
            assert fields["input_kwargs"]["input_ids"]["shape"][1] == (1 if number else 4)
