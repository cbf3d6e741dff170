"""`debugger.save(variable, name)`: any nesting of values, and their gradients with the number of their forward."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe import UsageError
from tensorprobe.pytorch import PrecisionDebugger
from tests.pytorch.program import DUMP, dump_of, files_in, make_net

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    logits: torch.Tensor
    loss: float


def make(task: str = "tensor", level: str = "debug") -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, task=task, level=level)


def points(step: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = dump_of(step).read("debug.json")["data"]
    return data


def tensors(step: int = 0) -> list[str]:
    return files_in(DUMP / f"step{step}" / "rank" / "dump_tensor_data")


def value(key: str) -> Any:
    return dump_of().tensors(points()[key])


def save_one(variable: Any, **options: Any) -> Any:
    """What debug.json holds of one saved variable."""
    debugger = make()
    debugger.save(variable, "v", **options)
    debugger.step()
    return points()["v.0.debug"]


def test_a_plain_tensor_and_its_gradient_have_files_without_an_index() -> None:
    debugger = make()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    x2 = x * 3
    debugger.save(x2, "x2")
    (x2 * torch.tensor([4.0, 5.0])).sum().backward()
    debugger.step()
    assert tensors() == ["x2.0.debug.pt", "x2_grad.0.debug.pt"]
    assert list(points()) == ["x2.0.debug", "x2_grad.0.debug"]
    assert torch.equal(value("x2.0.debug"), torch.tensor([3.0, 6.0]))
    assert torch.equal(value("x2_grad.0.debug"), torch.tensor([4.0, 5.0]))


def test_nested_values_have_their_keys_and_0_based_positions_in_the_names() -> None:
    debugger = make()
    a, b, c = (torch.ones(2, requires_grad=True) * number for number in (1, 2, 3))
    debugger.save({"key1": a, "key2": [b, c]}, "x2")
    (a + 2 * b + 3 * c).sum().backward()
    debugger.step()
    assert tensors() == [f"x2{grad}.0.debug.{place}.pt" for grad in ("", "_grad") for place in PLACES]
    assert value("x2_grad.0.debug")["key2"][1].tolist() == [3.0, 3.0]


PLACES = ("key1", "key2.0", "key2.1")


@pytest.mark.parametrize(
    ("variable", "saved"),
    [
        (3, {"type": "int", "value": 3}),
        (1.5, {"type": "float", "value": 1.5}),
        ("text", {"type": "str", "value": "text"}),
        (True, {"type": "bool", "value": True}),
        (None, None),
        ([], []),
        ({}, {}),
        ((1, [None, "a"]), [{"type": "int", "value": 1}, [None, {"type": "str", "value": "a"}]]),
        ({1: {"b": 2.0}}, {"1": {"b": {"type": "float", "value": 2.0}}}),
        (Pair(1, None), {"left": {"type": "int", "value": 1}, "right": None}),
        ({"type": "int"}, {"type": {"type": "str", "value": "int"}}),
        (10**30, {"type": "int", "value": 10**30}),
    ],
    ids=repr,
)
def test_values_that_are_no_tensors_are_kept_with_their_nesting(variable: Any, saved: Any) -> None:
    assert save_one(variable) == saved


def test_a_dataclass_is_kept_by_its_fields() -> None:
    saved = save_one(Output(torch.ones(2), 0.5))
    assert saved["logits"]["data_name"] == "v.0.debug.logits.pt"
    assert saved["loss"] == {"type": "float", "value": 0.5}


def test_a_named_tuple_of_tensors_has_gradients_by_its_fields() -> None:
    debugger = make()
    pair = Pair(torch.ones(2, requires_grad=True) * 2, torch.zeros(1))
    debugger.save(pair, "p")
    pair.left.sum().backward()
    debugger.step()
    assert tensors() == ["p.0.debug.left.pt", "p.0.debug.right.pt", "p_grad.0.debug.left.pt"]


def test_a_nesting_may_be_deep() -> None:
    tree: Any = torch.full((1,), 7.0)
    for _ in range(15):
        tree = [{"a": tree}]
    saved = save_one(tree)
    for _ in range(15):
        saved = saved[0]["a"]
    assert saved["Max"] == 7.0 and saved["data_name"] == f"v.0.debug{'.0.a' * 15}.pt"


def test_a_list_that_contains_itself_is_saved_and_ends() -> None:
    loop: list[Any] = [torch.ones(1, requires_grad=True) * 2]
    loop.append(loop)
    saved = save_one(loop)
    assert saved[0]["Max"] == 2.0 and isinstance(saved[1], (list, dict))


def test_one_value_that_cannot_be_written_does_not_take_the_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    debugger = make()
    debugger.save(1, "before")
    debugger.save(10**5000, "huge")  # Python refuses to turn it into text
    debugger.save(2, "after")
    debugger.step()
    assert list(points()) == ["before.0.debug", "after.0.debug"]
    assert "the record huge.0.debug could not be written" in caplog.text


def test_the_calls_with_one_name_are_counted() -> None:
    debugger = make()
    for number in range(3):
        debugger.save(number, "n")
    debugger.save(0, "m")
    debugger.step()
    assert list(points()) == ["n.0.debug", "n.1.debug", "n.2.debug", "m.0.debug"]


def test_a_gradient_has_the_number_of_its_forward_when_they_come_in_another_order() -> None:
    debugger = make()
    x = torch.ones(1, requires_grad=True)
    for factor in (2.0, 3.0, 4.0):
        x = x * factor
        debugger.save(x, "x")
    x.backward()
    debugger.step()
    assert list(points())[3:] == ["x_grad.2.debug", "x_grad.1.debug", "x_grad.0.debug"]
    assert [float(value(f"x_grad.{n}.debug")) for n in range(3)] == [12.0, 4.0, 1.0]


def test_a_gradient_has_the_number_of_its_forward_when_only_some_have_one() -> None:
    debugger = make()
    leaf = torch.ones(1, requires_grad=True)
    unused, used = leaf * 2, leaf * 3
    debugger.save(torch.ones(1), "x")
    debugger.save(unused, "x")
    debugger.save(used, "x")
    used.backward()
    debugger.step()
    assert list(points()) == ["x.0.debug", "x.1.debug", "x.2.debug", "x_grad.2.debug"]


def test_in_a_nesting_the_places_without_a_gradient_are_null() -> None:
    debugger = make()
    x = torch.ones(1, requires_grad=True)
    used, unused = x * 2, x * 3
    debugger.save({"a": [used, unused, 5, None], "b": torch.ones(1)}, "x")
    used.backward()
    debugger.step()
    gradient = points()["x_grad.0.debug"]
    assert gradient["a"][0]["Max"] == 1.0
    assert gradient["a"][1:] == [None, None, None] and gradient["b"] is None


def test_the_gradients_of_one_save_may_come_from_two_backward_passes() -> None:
    debugger = make()
    a, b = (torch.ones(1, requires_grad=True) * number for number in (1, 2))
    debugger.save([a, b], "x")
    (5 * a).backward()
    (6 * b).backward()
    debugger.step()
    assert [float(item) for item in value("x_grad.0.debug")] == [5.0, 6.0]


def test_the_gradient_is_the_sum_over_all_who_use_the_tensor() -> None:
    debugger = make()
    x = torch.ones(1, requires_grad=True) * 2
    debugger.save(x, "x")
    (x * 3 + x * 4).sum().backward()
    debugger.step()
    assert float(value("x_grad.0.debug")) == 7.0


def test_a_later_change_in_place_does_not_change_what_was_saved() -> None:
    debugger = make()
    x = torch.ones(2, requires_grad=True) * 2
    debugger.save(x, "x")
    x.mul_(10)
    x.sum().backward()
    debugger.step()
    assert value("x.0.debug").tolist() == [2.0, 2.0]
    assert value("x_grad.0.debug").tolist() == [10.0, 10.0]


def test_leaves_and_parameters_have_their_gradients() -> None:
    debugger = make()
    layer, x = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
    debugger.save(layer.weight, "w")
    debugger.save(x, "x")
    layer(x).sum().backward()
    debugger.step()
    assert torch.equal(value("w_grad.0.debug"), layer.weight.grad)
    assert torch.equal(value("x_grad.0.debug"), x.grad)
    assert layer.weight._backward_hooks is None and x._backward_hooks is None


def test_a_gradient_that_is_only_asked_for_is_saved_too() -> None:
    debugger = make()
    leaf = torch.ones(2, requires_grad=True)
    x = leaf * 2
    debugger.save(leaf, "leaf")
    debugger.save(x, "x")
    torch.autograd.grad((leaf * 3).sum(), leaf)
    torch.autograd.grad((x * 5).sum(), x)
    debugger.step()
    assert value("leaf_grad.0.debug").tolist() == [3.0, 3.0]
    assert value("x_grad.0.debug").tolist() == [5.0, 5.0]


def test_the_gradient_of_a_parameter_is_recorded_once_per_step() -> None:
    debugger = make()
    layer = nn.Linear(2, 1)
    for _ in range(3):
        debugger.save(layer.weight, "w")
        layer(torch.ones(1, 2)).sum().backward()
        debugger.step()
    assert [list(points(step)) for step in range(3)] == [["w.0.debug", "w_grad.0.debug"]] * 3


def test_a_parameter_that_a_fused_optimizer_has_changed_is_read_again() -> None:
    debugger = make(task="statistics")
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    weight.grad = torch.ones(4)
    debugger.save(weight, "w")
    optimizer.step()
    debugger.save(weight, "w")
    debugger.step()
    assert [points()[f"w.{n}.debug"]["Max"] for n in (0, 1)] == [1.0, 0.0]


def test_a_value_that_was_written_past_torch_after_the_window_is_read_again() -> None:
    debugger = make("statistics", "L1")
    debugger.start()
    y = torch.ones(4).mul(2)
    debugger.stop()
    y.numpy()[:] = 5
    debugger.save(y, "y")
    debugger.step()
    assert points()["y.0.debug"]["Max"] == 5.0


def test_under_no_grad_the_value_is_saved_and_no_gradient_is_expected() -> None:
    debugger = make()
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        debugger.save(x * 2, "y")
    with torch.inference_mode():
        debugger.save(torch.ones(2) * 3, "z")
    debugger.step()
    assert list(points()) == ["y.0.debug", "z.0.debug"] and float(value("z.0.debug")[0]) == 3.0


def test_without_save_backward_no_gradient_is_saved() -> None:
    debugger = make()
    x = torch.ones(2, requires_grad=True) * 2
    debugger.save(x, "x", save_backward=False)
    debugger.save(x, "y", False)
    x.sum().backward()
    debugger.step()
    assert list(points()) == ["x.0.debug", "y.0.debug"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("layer 1 out", "layer 1 out.0.debug.pt"),
        ("encoder/block", "encoder%2Fblock.0.debug.pt"),
        ("激活值", "激活值.0.debug.pt"),
        ("a.b.c", "a.b.c.0.debug.pt"),
        ("../escape", "%2E.%2Fescape.0.debug.pt"),
        ('"quoted"', "%22quoted%22.0.debug.pt"),
    ],
)
def test_names_may_hold_any_character(name: str, file: str) -> None:
    debugger = make()
    debugger.save(torch.ones(2), name)
    debugger.step()
    assert tensors() == [file]
    assert points()[f"{name}.0.debug"]["data_name"] == file
    assert value(f"{name}.0.debug").tolist() == [1.0, 1.0]


def test_a_name_that_is_too_long_for_a_file_is_cut() -> None:
    debugger = make()
    debugger.save(torch.ones(2), "长" * 300)
    debugger.step()
    assert float(value(f"{'长' * 300}.0.debug")[0]) == 1.0


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_text_that_is_not_empty(name: Any) -> None:
    with pytest.raises(UsageError, match=r"save\(variable, name\): the name must be a text that is not empty, not "):
        make().save(1, name)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_it_works_at_the_other_levels_and_is_not_recorded_as_a_call(level: str) -> None:
    debugger = make("statistics", level)
    model, x = make_net()
    debugger.save(x, "before")
    debugger.start(model)
    hidden = model.conv1(x)
    debugger.save({"hidden": hidden}, "inside")
    debugger.stop()
    hidden.square().sum().backward()
    debugger.step()
    assert list(points()) == ["before.0.debug", "inside.0.debug", "inside_grad.0.debug"]
    calls = {name for name in dump_of().records if "forward" in name}
    assert calls <= {"Functional.conv2d.0.forward", "Module.conv1.Conv2d.forward.0"}


def test_inside_a_window_the_saved_value_names_the_call_that_made_it() -> None:
    debugger = make("statistics", "L1")
    debugger.start()
    debugger.save(torch.ones(2).sin(), "y")
    debugger.stop()
    debugger.step()
    assert points()["y.0.debug"]["source"] == "Tensor.sin.0.forward"


def test_with_step_each_iteration_has_its_own_folder_and_counts_anew() -> None:
    debugger = make()
    for _ in range(3):
        debugger.save(torch.ones(1), "x2")
        debugger.step()
    assert files_in(DUMP) == ["step0", "step1", "step2"]
    assert list(points(2)) == ["x2.0.debug"]


def test_level_debug_leaves_debug_json_and_no_files_of_calls() -> None:
    debugger = make("statistics")
    debugger.save(torch.ones(1), "x")
    debugger.step()
    assert files_in(DUMP / "step0" / "rank") == ["debug.json", "run.json"]


def test_statistics_are_in_debug_json() -> None:
    debugger = make("statistics")
    debugger.save(torch.tensor([3.0, -4.0]), "x")
    debugger.step()
    leaf = points()["x.0.debug"]
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (3.0, -4.0, -0.5, 5.0)
    assert leaf["type"] == "torch.Tensor" and leaf["shape"] == [2] and "data_name" not in leaf


def test_a_gradient_that_comes_after_step_is_not_saved() -> None:
    debugger = make()
    x = torch.ones(1, requires_grad=True) * 2
    debugger.save(x, "x")
    debugger.step()
    x.backward()
    debugger.save(1, "y")
    debugger.step()
    assert list(points(0)) == ["x.0.debug"] and list(points(1)) == ["y.0.debug"]


def test_training_is_bit_identical_while_values_are_saved() -> None:
    def train(debugger: PrecisionDebugger | None) -> list[torch.Tensor]:
        model, x = make_net()
        for _ in range(2):
            hidden = model.conv1(x)
            if debugger is not None:
                debugger.save([hidden, model.fc.weight], "h")
            model.fc(torch.relu(hidden).flatten(1)).square().sum().backward()
            if debugger is not None:
                debugger.step()
        return [parameter.grad for parameter in model.parameters()]

    assert all(torch.equal(plain, saved) for plain, saved in zip(train(None), train(make()), strict=True))
