"""Idioms of PyTorch that change nothing: what one run computes besides, checks, or writes with types of Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Verdict

Loss = Callable[[nn.Module], Tensor]


def record(path: Path, model: nn.Module, find_loss: Loss) -> Path:
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        find_loss(model).backward()
    return path


def compare(tmp_path: Path, make: Callable[[], nn.Module], reference: Loss, candidate: Loss) -> Verdict:
    paths = []
    for name, find_loss in (("reference", reference), ("candidate", candidate)):
        torch.manual_seed(0)
        paths.append(record(tmp_path / name, make(), find_loss))
    return tensorprobe.compare(*paths, processes=1).verdict


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# -- the states of a recurrent network ---------------------------------------------------------------------------------

LENGTHS = torch.tensor([4, 2, 3])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 1)


def read_packed(model: nn.Module) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(draw(3, 4, 5), LENGTHS, batch_first=True, enforce_sorted=False)
    _, (last, _) = model.lstm(packed)
    return model.out(last[0]).square().sum()  # type: ignore[no-any-return]


def read_padded(model: nn.Module, shift: int = 1) -> Tensor:
    """What it has read of the padding is in its last states, and nobody takes those."""
    outputs, _ = model.lstm(draw(3, 4, 5))
    return model.out(outputs[torch.arange(3), LENGTHS - shift]).square().sum()  # type: ignore[no-any-return]


def test_states_behind_the_padding_that_nobody_takes_are_no_results(tmp_path: Path) -> None:
    assert compare(tmp_path, Reader, read_packed, read_padded).kind == "agree"
    verdict = compare(tmp_path / "wrong", Reader, read_packed, lambda model: read_padded(model, 2))
    assert verdict.kind != "agree", verdict


# -- arguments that are checked ----------------------------------------------------------------------------------------


def test_a_distribution_that_checks_its_arguments_is_a_loss_that_is_written_out(tmp_path: Path) -> None:
    actions = torch.tensor([0, 2, 1, 1])

    def ask(model: nn.Module) -> Tensor:
        chances = torch.distributions.Categorical(logits=model(draw(4, 5)))
        return -chances.log_prob(actions).mean() - 0.1 * chances.entropy().mean()

    def write_out(model: nn.Module) -> Tensor:
        logs = model(draw(4, 5)).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        return -logs.gather(1, actions[:, None]).mean() - 0.1 * entropy.mean()

    verdict = compare(tmp_path, lambda: nn.Linear(5, 3), ask, write_out)
    assert verdict.kind == "agree", verdict


# -- types of Python for dtypes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("boolean", [bool, torch.bool])
def test_what_is_made_with_a_type_of_python_is_executed_again(boolean: torch.dtype, tmp_path: Path) -> None:
    def mask(model: nn.Module) -> Tensor:
        hidden = ~torch.ones(4, 4, dtype=boolean).tril()
        counts = torch.arange(1, 5, dtype=int).to(float)  # type: ignore[call-overload]
        return (model(draw(4, 4)).masked_fill(hidden, 0).sum(-1) / counts).square().sum()  # type: ignore[no-any-return]

    def multiply(model: nn.Module) -> Tensor:
        return ((model(draw(4, 4)) * torch.ones(4, 4).tril()).sum(-1) / torch.arange(1.0, 5.0)).square().sum()  # type: ignore[no-any-return]

    verdict = compare(tmp_path, lambda: nn.Linear(4, 4), mask, multiply)
    assert verdict.kind == "agree", verdict
    assert not any("executed again" in line for line in verdict.evidence), verdict.evidence


# -- what is only looked at --------------------------------------------------------------------------------------------


def test_an_accuracy_that_one_run_alone_computes_is_no_difference(tmp_path: Path) -> None:
    labels = torch.tensor([0, 2, 1, 1])

    def look(model: nn.Module) -> Tensor:
        scores = model(draw(4, 5))
        print((scores.argmax(-1) == labels).float().mean().item())
        return F.cross_entropy(scores, labels)

    def train(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(draw(4, 5)), labels)

    assert compare(tmp_path / "more", lambda: nn.Linear(5, 3), train, look).kind == "agree"
    assert compare(tmp_path / "less", lambda: nn.Linear(5, 3), look, train).kind == "agree"
