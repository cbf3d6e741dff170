"""`debugger.save(variable, name)`: any nesting of values, by their names and numbers."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from tensorprobe import UsageError
from tests.mindspore.point import differentiate, make, points, tensors, value
from tests.mindspore.program import DUMP, dump_of, files_in, make_debugger, make_net, tensor

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    logits: Tensor
    loss: float


def save_one(variable: Any, **options: Any) -> Any:
    """What debug.json holds of one saved variable."""
    debugger = make()
    debugger.save(variable, "v", **options)
    debugger.step()
    return points()["v.0.debug"]


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
    saved = save_one(Output(tensor([1.0, 1.0]), 0.5))
    assert saved["logits"]["data_name"] == "v.0.debug.logits.npy"
    assert saved["loss"] == {"type": "float", "value": 0.5}


def test_a_nesting_may_be_deep() -> None:
    tree: Any = tensor([7.0])
    for _ in range(15):
        tree = [{"a": tree}]
    saved = save_one(tree)
    for _ in range(15):
        saved = saved[0]["a"]
    assert saved["Max"] == 7.0 and saved["data_name"] == f"v.0.debug{'.0.a' * 15}.npy"


def test_a_list_that_contains_itself_is_saved_and_ends() -> None:
    loop: list[Any] = [tensor([2.0])]
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


def test_a_later_change_in_place_does_not_change_what_was_saved() -> None:
    debugger = make()
    x = tensor([2.0, 2.0])
    debugger.save(x, "x")
    x[0] = 10
    debugger.save(x, "x")
    debugger.step()
    assert value("x.0.debug").tolist() == [2.0, 2.0] and value("x.1.debug").tolist() == [10.0, 2.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_write_through_numpy_afterwards_does_not_change_what_was_saved(is_async: bool) -> None:
    debugger = make_debugger(level="debug", task="tensor", async_dump=is_async)
    shared = np.array([2.0, 2.0], np.float32)
    debugger.save(Tensor.from_numpy(shared), "x")
    shared[:] = 10
    debugger.step()
    assert value("x.0.debug").tolist() == [2.0, 2.0]


def test_a_parameter_that_an_optimizer_has_changed_is_read_again() -> None:
    debugger = make(task="statistics")
    weight = Parameter(tensor(np.ones(4)), name="w")
    optimizer = nn.SGD([weight], learning_rate=1.0)
    debugger.save(weight, "w")
    optimizer((tensor(np.ones(4)),))
    debugger.save(weight, "w")
    debugger.step()
    assert [points()[f"w.{n}.debug"]["Max"] for n in (0, 1)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("layer 1 out", "layer 1 out.0.debug.npy"),
        ("encoder/block", "encoder%2Fblock.0.debug.npy"),
        ("激活值", "激活值.0.debug.npy"),
        ("a.b.c", "a.b.c.0.debug.npy"),
        ("../escape", "%2E.%2Fescape.0.debug.npy"),
        ('"quoted"', "%22quoted%22.0.debug.npy"),
    ],
)
def test_names_may_hold_any_character(name: str, file: str) -> None:
    debugger = make()
    debugger.save(tensor([1.0, 1.0]), name)
    debugger.step()
    assert tensors() == [file]
    assert points()[f"{name}.0.debug"]["data_name"] == file
    assert value(f"{name}.0.debug").tolist() == [1.0, 1.0]


def test_a_name_that_is_too_long_for_a_file_is_cut() -> None:
    debugger = make()
    debugger.save(tensor([1.0, 1.0]), "长" * 300)
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

    def compute(image: Tensor) -> Tensor:
        debugger.start(model)
        hidden = model.conv1(image)
        debugger.save({"hidden": hidden}, "inside")
        debugger.stop()
        return hidden.square().sum()

    differentiate(compute, x)
    debugger.step()
    assert list(points()) == ["before.0.debug", "inside.0.debug", "inside_grad.0.debug"]
    calls = {name for name in dump_of().records if "forward" in name}
    primitives = {"Primitive.conv2d.Conv2D.0.forward", "Primitive.bias_add.BiasAdd.0.forward"}
    assert calls and calls <= {*primitives, "Cell.conv1.Conv2d.forward.0"}


def test_inside_a_window_the_saved_value_names_the_call_that_made_it() -> None:
    debugger = make("statistics", "L1")
    debugger.start()
    debugger.save(tensor([1.0]).sin(), "y")
    debugger.stop()
    debugger.step()
    assert points()["y.0.debug"]["source"] == "Tensor.sin.0.forward"


def test_with_step_each_iteration_has_its_own_folder_and_counts_anew() -> None:
    debugger = make()
    for _ in range(3):
        debugger.save(tensor([1.0]), "x2")
        debugger.step()
    assert files_in(DUMP) == ["step0", "step1", "step2"]
    assert list(points(2)) == ["x2.0.debug"]


def test_level_debug_leaves_debug_json_and_no_files_of_calls() -> None:
    debugger = make("statistics")
    debugger.save(tensor([1.0]), "x")
    debugger.step()
    assert files_in(DUMP / "step0" / "rank") == ["debug.json", "run.json"]


def test_statistics_are_in_debug_json() -> None:
    debugger = make("statistics")
    debugger.save(tensor([3.0, -4.0]), "x")
    debugger.step()
    leaf = points()["x.0.debug"]
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (3.0, -4.0, -0.5, 5.0)
    assert leaf["type"] == "mindspore.Tensor" and leaf["shape"] == [2] and "data_name" not in leaf


@pytest.mark.parametrize("mode", ["md5", "hash"])
def test_checksums_are_in_debug_json_of_values_and_gradients(mode: str) -> None:
    debugger = make_debugger(level="debug", summary_mode=mode)

    def compute(x: Tensor) -> Tensor:
        debugger.save([x * 2, x * 2, x * 3], "y")
        return (x * 2).sum()

    differentiate(compute)
    debugger.save(tensor([2.0]), "two")
    debugger.step()
    first, second, third = (leaf[mode] for leaf in points()["y.0.debug"])
    assert first == second == points()["two.0.debug"][mode] != third
