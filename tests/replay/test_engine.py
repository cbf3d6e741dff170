"""A recorded step, executed again: the recorded bits in the recorded precision, what it means in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tensorprobe.model.name import ParametersGradName, parse_name
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Operation, read_program
from tensorprobe.store.reader import open_dump
from tests.replay.program import PROGRAMS, count_gradients, make_program, record, run_replay


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_in_the_recorded_precision_gives_every_bit_again(name: str, level: str, tmp_path: Path) -> None:
    model, step = make_program(name)
    folder = record(tmp_path, model, step, level)
    replay, differences = run_replay(folder, "recorded")
    assert differences.found == []
    assert replay.coverage.gaps == {}
    assert differences.forward_count
    assert differences.gradient_count == count_gradients(folder)


@pytest.mark.parametrize("name", ["convnet", "in_place"])
def test_so_it_does_under_autocast(name: str, tmp_path: Path) -> None:
    model, step = make_program(name)
    replay, differences = run_replay(record(tmp_path, model, step, cast=torch.bfloat16), "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})


@pytest.mark.parametrize("name", ["attention", "router"])
def test_so_it_does_in_bfloat16(name: str, tmp_path: Path) -> None:
    model, step = make_program(name, torch.bfloat16)
    replay, differences = run_replay(record(tmp_path, model, step), "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})


class ParameterGradients(Onlooker):
    """The gradients of parameters, and the last value of all."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self.last = torch.zeros(())

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        if not operation.is_module and tensors:
            self.last = next(iter(tensors.values())).detach()

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        name = parse_name(record)
        if isinstance(name, ParametersGradName):
            self.found[f"{name.path}.{slot}".strip(".")] = gradient.clone()


@pytest.mark.parametrize("name", ["in_place", "router"])  # the others draw random numbers, in float64 other ones
def test_the_truth_is_what_the_same_program_gives_in_float64(name: str, tmp_path: Path) -> None:
    folder = record(tmp_path, *make_program(name))
    onlooker = ParameterGradients()
    program = read_program(next(open_dump(folder).ranks()))
    Replay(program, Precision("float64"), torch.device("cpu"), onlooker).run()
    model, step = make_program(name, torch.float64)
    loss = step()
    loss.backward()
    assert torch.allclose(onlooker.last, loss.detach(), rtol=1e-12, atol=0)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert set(gradients) == set(onlooker.found)
    for parameter, gradient in gradients.items():
        assert (gradient - onlooker.found[parameter]).norm() <= 1e-12 * gradient.norm(), parameter


def test_a_call_that_cannot_be_made_again_keeps_its_recorded_results(tmp_path: Path) -> None:
    @torch.jit.script
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    folder = record(tmp_path, model, lambda: double(model(x)).sum())
    replay, differences = run_replay(folder, "recorded")
    assert list(replay.coverage.gaps) == ["Jit.double.0.forward"]
    assert [name for name in differences.found if name.endswith(".forward.output.0")] == []


def cast_once(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Two uses of a weight that is cast once, one in full precision between them, one without gradients."""
    with torch.autocast("cpu", torch.bfloat16):
        first = layer(x)
        with torch.autocast("cpu", enabled=False):
            second = layer(first.float())
        with torch.no_grad():
            aside = layer(x)
        return (layer(second) + first + aside).float()


def cast_in_two_regions(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """One after the other, with nothing in between."""
    with torch.autocast("cpu", torch.bfloat16):
        first = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        second = layer(first)
        return (layer(second) + first).float()


def cast_without_a_cache(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        return (layer(layer(x)) + layer(x)).float()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("use", [cast_once, cast_in_two_regions, cast_without_a_cache])
def test_a_weight_is_cast_as_often_as_autocast_did(use: Any, level: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(16, 16), torch.randn(8, 16)
    replay, differences = run_replay(record(tmp_path, layer, lambda: (use(layer, x) ** 2).sum(), level), "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})


def test_gradients_are_judged_where_no_model_was_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 3), torch.randn(4, 6, requires_grad=True)
    with tensorprobe.capture(None, tmp_path, level="L1", task="tensor") as run:
        (layer(x).tanh() ** 2).sum().backward()
        run.step()
    replay, differences = run_replay(tmp_path, "recorded")
    assert (differences.found, replay.coverage.gaps, differences.leaf_count) == ([], {}, 3)
    (found,) = tensorprobe.truth(tmp_path).runs
    assert found.findings == [] and len(found.parameter_gradients) == 3
    assert all(row.accumulated is not None and row.accumulated.relative < 1e-5 for row in found.parameter_gradients)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_lie_in_one_memory_are_added_to(level: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x, memory = torch.nn.Linear(3, 2), torch.randn(4, 3), torch.randn(8)
    layer.weight.grad, layer.bias.grad = memory[:6].view(2, 3), memory[6:]
    dump = record(tmp_path, layer, lambda: (layer(x) ** 2).sum(), level)
    replay, differences = run_replay(dump, "recorded")
    assert (differences.found, replay.coverage.gaps) == ([], {})
    assert tensorprobe.truth(dump).findings == []
