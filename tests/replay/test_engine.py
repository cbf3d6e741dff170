"""A recorded step, executed again: the recorded bits in the recorded precision, what it means in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorprobe.model.name import ParametersGradName, parse_name
from tensorprobe.replay.engine import Onlooker, Replay
from tensorprobe.replay.invocation import Tensors
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
