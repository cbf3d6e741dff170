"""Each call's gradients are its own share: for composite calls, in-place calls, tuples, kwargs, reused weights,
modules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.models import MODELS
from tests.capture.torch.training import open_session


def record(
    tmp_path: Path, run: Callable[[], torch.Tensor], level: str = "L1", model: nn.Module | None = None
) -> DumpOnDisk:
    """Run something to a loss and backward, and return what was recorded, with tensors."""
    session = open_session(tmp_path, level=level, task="tensor")
    session.start(model)
    run().backward()
    session.stop()
    assert session.recorder.coverage.failed == 0
    session.close()
    return only_step(tmp_path)


def gradients(dump: DumpOnDisk, name: str) -> list[Any]:
    return dump.tensors(dump.records[name]["output"])


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_two_consumers_of_one_tensor_each_record_their_own_share(tmp_path: Path) -> None:
    x = leaf(3)
    dump = record(tmp_path, lambda: (torch.sin(x) + torch.exp(x)).sum())
    assert torch.equal(gradients(dump, "Torch.sin.0.backward")[0], x.detach().cos())
    assert torch.equal(gradients(dump, "Torch.exp.0.backward")[0], x.detach().exp())
    assert torch.allclose(x.grad, x.detach().cos() + x.detach().exp())


def test_a_tensor_multiplied_by_itself_has_a_share_in_each_slot(tmp_path: Path) -> None:
    x = leaf(3)
    dump = record(tmp_path, lambda: (x * x).sum())
    first, second = gradients(dump, "Tensor.mul.0.backward")
    assert torch.equal(first, x.detach()) and torch.equal(second, x.detach())


def test_a_composite_call_is_followed_through_all_its_nodes(tmp_path: Path) -> None:
    logits, target = leaf(4, 5), torch.tensor([0, 1, 2, 3])
    dump = record(tmp_path, lambda: F.cross_entropy(logits, target))
    assert torch.equal(gradients(dump, "Functional.cross_entropy.0.backward")[0], logits.grad)
    assert gradients(dump, "Functional.cross_entropy.0.backward")[1] is None


def test_the_weight_of_a_matmul_with_a_batched_input_has_its_gradient(tmp_path: Path) -> None:
    x, w = leaf(2, 3, 4), leaf(4, 5)
    dump = record(tmp_path, lambda: torch.matmul(x, w).square().sum())
    assert torch.equal(gradients(dump, "Torch.matmul.0.backward")[0], x.grad)
    assert torch.equal(gradients(dump, "Torch.matmul.0.backward")[1], w.grad)


def test_an_inplace_call_records_the_gradients_of_both_inputs(tmp_path: Path) -> None:
    x, y = leaf(3), leaf(3)

    def run() -> torch.Tensor:
        z = x * 2
        z.mul_(y)
        return z.sum()

    dump = record(tmp_path, run)
    by_z, by_y = gradients(dump, "Tensor.mul_.0.backward")
    assert torch.equal(by_z, y.detach()) and torch.equal(by_y, x.detach() * 2)


def test_an_assignment_to_a_slice_records_the_gradient_of_what_was_assigned(tmp_path: Path) -> None:
    x, y = leaf(4), leaf(2)

    def run() -> torch.Tensor:
        z = x * 1
        z[:2] = y
        return (z * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()

    dump = record(tmp_path, run)
    assert torch.equal(gradients(dump, "Tensor.__setitem__.0.backward")[2], torch.tensor([1.0, 2.0]))
    assert torch.equal(y.grad, torch.tensor([1.0, 2.0]))


def test_keyword_arguments_have_their_gradients_under_their_names(tmp_path: Path) -> None:
    x, w = leaf(2, 3), leaf(4, 3)
    dump = record(tmp_path, lambda: F.linear(x, weight=w).square().sum())
    fields = dump.records["Functional.linear.0.backward"]
    assert fields["output_kwargs"]["weight"]["data_name"] == "Functional.linear.0.backward.kwargs.weight.pt"
    assert torch.equal(dump.tensor(fields["output_kwargs"]["weight"]), w.grad)


def test_lists_of_tensors_keep_their_nesting(tmp_path: Path) -> None:
    x, y = leaf(2), leaf(3)
    dump = record(tmp_path, lambda: torch.cat([x, y]).square().sum())
    assert dump.records["Torch.cat.0.backward"]["output"][0][1]["data_name"] == "Torch.cat.0.backward.output.0.1.pt"
    parts = gradients(dump, "Torch.cat.0.backward")[0]
    assert torch.equal(parts[0], x.grad) and torch.equal(parts[1], y.grad)


def test_an_unused_output_of_a_tuple_has_no_gradient(tmp_path: Path) -> None:
    x = leaf(4)
    dump = record(tmp_path, lambda: torch.split(x * 1, 2)[1].sum())
    incoming = dump.tensors(dump.records["Torch.split.0.backward"]["input"])
    assert incoming[0] is None and torch.equal(incoming[1], torch.ones(2))


def test_a_weight_used_twice_has_the_share_of_each_use(tmp_path: Path) -> None:
    x, w = leaf(2, 3), leaf(3, 3)
    dump = record(tmp_path, lambda: F.linear(F.linear(x, w), w).sum())
    shares = [gradients(dump, f"Functional.linear.{index}.backward")[1] for index in (0, 1)]
    assert not torch.equal(shares[0], shares[1])
    assert torch.allclose(shares[0] + shares[1], w.grad)


def test_a_call_that_returns_its_input_passes_the_gradient_through(tmp_path: Path) -> None:
    x = leaf(3)
    dump = record(tmp_path, lambda: (x * 2).contiguous().sum())
    fields = dump.records["Tensor.contiguous.0.backward"]
    assert torch.equal(dump.tensor(fields["output"][0]), torch.ones(3))


def test_a_call_that_returns_what_another_thread_made_passes_the_gradient_through(tmp_path: Path) -> None:
    """Threads number their nodes each for itself."""
    x, made = leaf(3), list[torch.Tensor]()

    def make() -> None:
        made.extend(torch.cos(torch.sin(x)) for _ in range(50))

    def run() -> torch.Tensor:
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[-1].contiguous().sum()

    fields = record(tmp_path, run).records["Tensor.contiguous.0.backward"]
    assert fields["output"][0] is not None


def test_where_a_node_raises_what_came_to_it_is_recorded(tmp_path: Path) -> None:
    x = leaf(3)

    def run() -> torch.Tensor:
        result = torch.exp(x)
        loss = torch.sum(torch.mul(result, 3))
        result.detach().add_(1)  # which its backward needs
        return loss

    session = open_session(tmp_path, level="L1", task="tensor")
    session.start()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run().backward()
    session.close()
    dump = only_step(tmp_path)
    assert torch.equal(dump.tensor(dump.records["Torch.exp.0.backward"]["input"][0]), torch.full((3,), 3.0))


def test_a_changed_tensor_keeps_the_gradient_of_the_moment_it_was_returned(tmp_path: Path) -> None:
    x = leaf(3)

    def run() -> torch.Tensor:
        y = torch.sin(x)
        y.mul_(3.0)
        return y.sum()

    dump = record(tmp_path, run)
    assert torch.equal(dump.tensor(dump.records["Torch.sin.0.backward"]["input"][0]), torch.full((3,), 3.0))


@pytest.mark.parametrize("model_name", MODELS)
def test_every_api_gradient_equals_that_of_the_call_on_its_own(model_name: str, tmp_path: Path) -> None:
    """Replay each recorded call with its recorded inputs and incoming gradients."""
    torch.manual_seed(3)
    model, loss_of, batches = MODELS[model_name]()
    model.eval()  # a replay draws other random numbers
    dump = record(tmp_path, lambda: loss_of(model, batches[0]))
    replayed = sum(replay(dump, name) for name in dump.records if name.endswith(".backward"))
    assert replayed >= 3


def replay(dump: DumpOnDisk, name: str) -> bool:
    prefix, api = name.split(".")[0], ".".join(name.split(".")[1:-2])
    owner: Any = {"Functional": F, "Torch": torch, "Tensor": torch.Tensor}.get(prefix)
    for part in api.split("."):
        owner = getattr(owner, part, None)
    backward, forward = dump.records[name], dump.records[name.replace("backward", "forward")]
    if owner is None or api in ("__getitem__", "to", "type_as") or "lstm" in api:
        return False  # their arguments are no plain data
    args = dump.tensors(forward["input_args"])
    kwargs = dump.tensors(forward["input_kwargs"])
    wanted = [
        (leaf, value)
        for leaf, value in zip(backward["output"], args, strict=True)
        if leaf and isinstance(value, torch.Tensor)
    ]
    inputs = [value.requires_grad_(True) for _, value in wanted]
    outputs = owner(
        *[value * 1 if isinstance(value, torch.Tensor) and value.requires_grad else value for value in args], **kwargs
    )
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    incoming = dump.tensors(backward["input"])
    pairs = [(out, grad) for out, grad in zip(outputs, incoming, strict=True) if grad is not None]
    if not inputs or not pairs:
        return False
    expected = torch.autograd.grad([out for out, _ in pairs], inputs, [grad for _, grad in pairs])
    for (leaf, _), theirs in zip(wanted, expected, strict=True):
        assert torch.allclose(dump.tensor(leaf), theirs, rtol=1e-5, atol=1e-7), name
    return True


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("model_name", ["gpt", "lstm", "llama"])
def test_module_gradients_equal_those_of_full_backward_hooks(model_name: str, level: str, tmp_path: Path) -> None:
    expected: dict[str, tuple[Any, Any]] = {}
    torch.manual_seed(3)
    model, loss_of, batches = MODELS[model_name]()
    model.eval()

    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            expected[path] = (inputs, outputs)

        return hook

    handles = [module.register_full_backward_hook(keep(path)) for path, module in model.named_modules() if path]
    loss_of(model, batches[0]).backward()
    for handle in handles:
        handle.remove()
    parameter_gradients = {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    dump = record(tmp_path, lambda: loss_of(model, batches[0]), level=level, model=model)
    for path, (inputs, outputs) in expected.items():
        fields = dump.records[find_name(dump, path, "backward.0")]
        check_close(dump.tensors(fields["input"]), outputs, path)
        if any(value is not None for value in inputs):
            check_close(dump.tensors(fields["output"]), inputs, path)
    for path, gradient in parameter_gradients.items():
        module, _, parameter = path.rpartition(".")
        fields = dump.records[find_name(dump, module, "parameters_grad")]
        assert torch.allclose(
            dump.tensor(fields[parameter][0]), gradient, rtol=1e-4, atol=1e-6
        )  # full backward hooks change bits


def find_name(dump: DumpOnDisk, path: str, ending: str) -> str:
    """The record of a module whose class is not known."""
    (name,) = [
        name
        for name in dump.records
        if name.startswith(f"Module.{path}.")
        and name.endswith(ending)
        and "." not in name[len(f"Module.{path}.") : -len(ending) - 1]
    ]
    return name


def check_close(recorded: list[Any], expected: Any, name: str) -> None:
    flat = [
        tensor for item in recorded for tensor in (item if isinstance(item, list) else [item]) if tensor is not None
    ]
    wanted = [tensor for tensor in expected if tensor is not None]
    for mine, theirs in zip(flat, wanted, strict=False):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6), name
    assert flat or not wanted, name


def test_an_inplace_module_keeps_its_backward_and_the_parents_stay_true(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    dump = record(tmp_path, lambda: model(x).sum(), level="mix", model=model)
    forward, backward = dump.records["Module.1.ReLU.forward.0"], dump.records["Module.1.ReLU.backward.0"]
    before, after = dump.tensor(forward["input_args"][0]), dump.tensor(forward["output"][0])
    assert before.min() < 0 and torch.equal(after, before.relu())
    assert torch.equal(dump.tensor(backward["output"][0]), dump.tensor(backward["input"][0]) * (before > 0))
    assert dump.parents["Functional.relu.0.forward"] == "Module.1.ReLU.forward.0"
    assert dump.parents["Module.1.ReLU.forward.0"] == "Module.Sequential.forward.0"
    assert dump.parents["Functional.linear.1.backward"] == "Module.2.Linear.backward.0"


def parameter_gradient(dump: DumpOnDisk) -> torch.Tensor:
    return dump.tensor(dump.records["Module.Linear.parameters_grad"]["weight"][0])


def test_parameter_gradients_are_the_sum_so_far_when_gradients_accumulate(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    session = open_session(tmp_path, level="L0", task="tensor")
    session.start(model)
    for _ in range(3):
        model(torch.randn(4, 3)).square().sum().backward()
    session.close()
    assert torch.equal(parameter_gradient(only_step(tmp_path)), model.weight.grad)


def test_parameter_gradients_come_after_a_forward_whose_graph_was_dropped(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)

    def run() -> torch.Tensor:
        model(torch.randn(1, 3))
        return model(torch.randn(4, 3)).square().sum()

    assert torch.equal(parameter_gradient(record(tmp_path, run, "mix", model)), model.weight.grad)


def test_parameter_gradients_are_known_to_an_optimizer_that_works_in_backward(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    dump = record(tmp_path, lambda: model(torch.ones(4, 3)).sum(), "L0", model)
    assert torch.equal(parameter_gradient(dump), torch.full((2, 3), 4.0))


def test_under_autocast_each_use_of_a_weight_has_its_own_share(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    first, second = torch.ones(4, 3), torch.full((4, 3), 10.0)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(first).float().sum() + model(second).float().sum()

    dump = record(tmp_path, run, "mix", model)
    assert torch.equal(gradients(dump, "Functional.linear.0.backward")[1].float(), torch.full((2, 3), 4.0))
    assert torch.equal(gradients(dump, "Functional.linear.1.backward")[1].float(), torch.full((2, 3), 40.0))
    assert torch.equal(parameter_gradient(dump), model.weight.grad)


def test_a_later_pass_over_the_same_graph_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    x = leaf(4, 2)
    session = open_session(tmp_path, level="L1", task="tensor")
    session.start()
    y = torch.sin(x)
    y[:, 0].sum().backward(retain_graph=True)
    (y[:, 1].sum() * 7).backward()
    session.stop()
    assert [reason for reason in session.recorder.coverage.unseen if "later pass" in reason]
    session.close()
    dump = only_step(tmp_path)
    incoming = dump.tensor(dump.records["Torch.sin.0.backward"]["input"][0])
    assert torch.equal(incoming[0], torch.tensor([0.0, 7.0]))


def test_a_tensor_in_two_places_that_cannot_be_told_apart_has_the_sum_in_the_first(tmp_path: Path) -> None:
    x, g = leaf(2, 3, 3), torch.randn(2, 3, 3)

    def run() -> torch.Tensor:
        y = x * 1
        return (torch.matmul(y, y) * g).sum()

    dump = record(tmp_path, run)
    first, second = gradients(dump, "Torch.matmul.0.backward")
    assert second is None and torch.allclose(first, x.grad, atol=1e-5)


@pytest.mark.parametrize("is_base_used", [True, False])
def test_a_view_that_is_changed_in_place_has_its_own_gradients(tmp_path: Path, is_base_used: bool) -> None:
    x, weights = leaf(2, 6), torch.arange(12.0).reshape(2, 6)

    def run() -> torch.Tensor:
        base = x * 1
        view = base[:, :3]
        view.mul_(2)
        return (base * weights).sum() if is_base_used else (view * weights[:, :3]).sum()

    dump = record(tmp_path, run)
    fields = dump.records["Tensor.mul_.0.backward"]
    assert torch.equal(dump.tensor(fields["input"][0]), weights[:, :3])
    assert torch.equal(dump.tensor(fields["output"][0]), 2 * weights[:, :3])


def test_an_inplace_call_on_a_transposed_view_records_both_inputs(tmp_path: Path) -> None:
    x, y = leaf(2, 3), leaf(3, 2)

    def run() -> torch.Tensor:
        base = x * 1
        base.t().mul_(y)
        return base.sum()

    dump = record(tmp_path, run)
    by_view, by_y = gradients(dump, "Tensor.mul_.0.backward")
    assert torch.equal(by_view, y.detach()) and torch.equal(by_y, x.detach().t())


def test_one_tensor_as_argument_and_as_keyword_has_both_shares(tmp_path: Path) -> None:
    x = leaf(3)
    dump = record(tmp_path, lambda: torch.mul(x, other=x).sum())
    fields = dump.records["Torch.mul.0.backward"]
    assert torch.equal(dump.tensor(fields["output"][0]), x.detach())
    assert torch.equal(dump.tensor(fields["output_kwargs"]["other"]), x.detach())
