"""A rank is read by its statistics, without its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe.compare.layout.statistic.step import SummaryRank, read_summary_ranks
from tensorprobe.store.reader import open_dump


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[SummaryRank, torch.nn.Linear, float]:
    folder = tmp_path_factory.mktemp("statistics")
    torch.manual_seed(0)
    model, x = torch.nn.Linear(6, 5), torch.randn(4, 6)
    with tensorprobe.capture(model, folder, level="mix", task="statistics") as recording:
        loss = model(x).relu().mean()
        loss.backward()
        recording.step()
    assert not list(Path(folder).rglob("*.pt"))
    (found,) = read_summary_ranks(open_dump(folder).steps[0].ranks).values()
    return found, model, loss.item()


def test_calls_are_linked_by_what_has_the_same_statistics(recorded: tuple[SummaryRank, object, object]) -> None:
    step = recorded[0].rank.step
    relu = next(call for name, call in step.calls.items() if "relu" in name)
    (given,) = relu.inputs.values()
    maker = step.maker(step.values[given])
    assert maker is not None and maker.name == "Functional.linear.0.forward"


def test_the_loss_is_the_root_and_has_its_number(recorded: tuple[SummaryRank, object, float]) -> None:
    (root,) = recorded[0].rank.step.roots
    assert root.array.item() == pytest.approx(recorded[2], rel=1e-6)


def test_parameters_and_their_gradients_are_known_by_their_names(
    recorded: tuple[SummaryRank, torch.nn.Linear, object],
) -> None:
    found, model, _ = recorded
    assert found.parameters.keys() == found.gradients.keys() == {"weight", "bias"}
    assert found.parameters["weight"].norm == pytest.approx(model.weight.norm().item(), rel=1e-5)
    assert model.weight.grad is not None
    assert found.gradients["weight"].norm == pytest.approx(model.weight.grad.norm().item(), rel=1e-5)
    assert found.dtypes == {"float32"}
