"""What a call computes on its way, seen when it is made once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.pytorch import PrecisionDebugger
from tensorprobe.replay import find_device
from tensorprobe.replay.inside import Inside
from tensorprobe.replay.program import Program, read_program
from tensorprobe.replay.true_step import TrueCall, TrueStep
from tensorprobe.replay.true_step_builder import build_true_step
from tensorprobe.store.reader import open_dump

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def replay(folder: Path, compute: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Program, TrueStep]:
    """Of one call."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compute(x)

    model = Model()
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model(X)
    program = read_program(next(open_dump(folder).ranks()))
    return program, build_true_step(program, find_device("cpu"))


def open_once(program: Program, step: TrueStep) -> tuple[TrueStep | None, TrueCall]:
    call = next(reversed(step.calls.values()))
    return Inside(program, find_device("cpu")).open(step, call.name), call


def parts_of(step: TrueStep) -> list[str]:
    return [call.op.removeprefix("aten.") for call in step.calls.values() if call.inside is not None]


def find(step: TrueStep, op: str) -> TrueCall:
    return next(call for call in step.calls.values() if call.op == f"aten.{op}")


def test_a_call_is_replaced_by_the_operators_that_it_executes(tmp_path: Path) -> None:
    program, step = replay(tmp_path, lambda x: F.rms_norm(x, (6,), eps=1e-3))
    opened, call = open_once(program, step)

    assert opened is not None
    assert parts_of(opened) == ["pow", "mean", "add_", "rsqrt", "mul"]
    assert {one.inside for one in opened.calls.values()} == {call.name}
    size = find(opened, "mean").outputs["output.0"]
    np.testing.assert_allclose(opened.values[size].array, X.double().square().mean(-1, keepdim=True))


def test_what_goes_in_and_comes_out_are_the_values_of_the_step(tmp_path: Path) -> None:
    program, step = replay(tmp_path, lambda x: F.rms_norm(x, (6,), eps=1e-3))
    opened, call = open_once(program, step)

    assert opened is not None
    assert find(opened, "pow").inputs["input.0"] == call.inputs["input.0"]
    last = find(opened, "mul")
    assert last.outputs == call.outputs
    assert opened.values[call.outputs["output.0"]].maker == last.name
    assert [value.number for value in opened.values] == list(range(len(opened.values)))


def test_a_call_of_a_single_operator_gets_its_name_first_and_is_taken_apart_then(tmp_path: Path) -> None:
    program, step = replay(tmp_path, lambda x: torch.softmax(x, -1))
    inside, name = Inside(program, find_device("cpu")), next(reversed(step.calls))

    spelt = inside.open(step, name)
    assert spelt is not None
    assert (spelt.calls[name].op, spelt.calls[name].arguments["dim"]) == ("aten._softmax", 1)
    opened = inside.open(spelt, name)
    assert opened is not None
    assert parts_of(opened) == ["amax", "sub", "exp", "sum", "div"]
    assert inside.open(opened, find(opened, "exp").name) is None


def test_what_is_written_in_place_inside_is_a_value_before_and_after(tmp_path: Path) -> None:
    layer = nn.LSTM(6, 3)
    program, step = replay(tmp_path, lambda x: layer(x.unsqueeze(1))[0])
    name = next(name for name, call in step.calls.items() if call.op == "lstm")
    opened = Inside(program, find_device("cpu")).open(step, name)

    assert opened is not None
    gate = find(opened, "sigmoid_")
    before = opened.values[gate.inputs["input.0"]].array
    after = opened.values[gate.outputs["output.0"]].array
    np.testing.assert_allclose(after, 1 / (1 + np.exp(-before)))


@pytest.mark.parametrize("compute", [torch.rand_like, lambda x: x.relu() @ x.T], ids=["random", "simple"])
def test_what_was_drawn_or_is_simple_stays_in_one_piece(
    compute: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    program, step = replay(tmp_path, compute)
    opened, call = open_once(program, step)
    assert opened is None or parts_of(opened) == []
    assert Inside(program, find_device("cpu")).open(opened or step, call.name) is None


def test_a_call_that_would_take_too_much_memory_inside_stays_in_one_piece(tmp_path: Path) -> None:
    program, step = replay(tmp_path, lambda x: F.rms_norm(x, (6,)))
    program.limit_bytes = 4 * X.numel() * 8
    opened, _ = open_once(program, step)
    assert opened is None


def test_the_generator_of_the_process_is_as_it_was(tmp_path: Path) -> None:
    program, step = replay(tmp_path, lambda x: F.layer_norm(x, (6,)))
    before = torch.get_rng_state()
    open_once(program, step)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("kind", "settings", "last"),
    [
        ("Adam", {"weight_decay": 0.1, "amsgrad": True}, "addcdiv_"),
        ("AdamW", {"maximize": True}, "addcdiv_"),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "add_"),
        ("SGD", {}, "add_"),
        ("Adagrad", {"lr_decay": 0.1}, "addcdiv_"),
    ],
    ids=["Adam", "AdamW", "SGD", "plain", "Adagrad"],
)
def test_an_update_of_all_parameters_in_one_call_is_taken_apart(
    kind: str, settings: dict[str, Any], last: str, tmp_path: Path
) -> None:
    """What is seen inside is held against what the call has made of the parameters: it must be the same."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, fused=True, **settings)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level="L1", task="tensor")
    for _ in range(2):
        debugger.start(model)
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    program = read_program(next(iter(open_dump(tmp_path / "step1").ranks())))
    step = build_true_step(program, find_device("cpu"))
    name = next(name for name in step.calls if "_fused_" in name)
    inside = Inside(program, find_device("cpu"))
    spelt = inside.open(step, name)
    opened = inside.open(spelt or step, name)
    assert opened is not None
    assert last in parts_of(opened)
    (weight, *_) = (value for value in opened.values if value.parameter == "weight" and value.maker is not None)
    assert opened.calls[weight.maker or ""].inside == name
