"""Dumps of api_dump, in which a layer is one call, compared by what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe import UsageError, migrator
from tensorprobe.compare.result import Comparison
from tests.migrator.api_dump_run import forget_session


class Net(nn.Module):
    """A residual network of layers, with one mistake or none."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8, eps=1e-2 if mistake == "epsilon" else 1e-5)
        self.activation = nn.ReLU() if mistake == "activation" else nn.GELU()
        self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        y = self.second(self.activation(x))
        if self.mistake == "scale":
            y = y * 1.01
        if self.mistake == "detached":
            y = y.detach()
        return self.last(y if self.mistake == "residual" else x + y)


class WrittenOut(Net):
    """The same in functions, the norm even in arithmetic: no call has the name that it has in the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.first.weight.T + self.first.bias
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.norm.weight + self.norm.bias
        return F.linear(x + F.linear(F.gelu(x), self.second.weight, self.second.bias), self.last.weight, self.last.bias)


DATA = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 1])


def train(net: nn.Module) -> None:
    nn.CrossEntropyLoss()(net(DATA), LABELS).backward()


def record(folder: Path, net: nn.Module, run: Callable[[nn.Module], Any] = train, **options: Any) -> Path:
    forget_session()
    migrator.api_dump_init(net, folder, retain_backward=True)
    migrator.api_dump_start(**{"filter_data": False, **options})
    run(net)
    migrator.api_dump_stop()
    return folder


def record_calls(folder: Path, net: nn.Module, level: str) -> Path:
    with tensorprobe.capture(net, folder, level=level, task="tensor"):
        train(net)
    return folder


def named(result: Comparison) -> list[str]:
    call = result.verdict.call
    assert call is not None, result.verdict.headline
    return [call.reference[-1].name, call.candidate[-1].name]


def lines(result: Comparison) -> list[str]:
    """The texts of the lines that are shown."""
    return [text.partition(": ")[2].partition(": ")[2] for text in result.verdict.evidence if "line: " in text]


def is_proved(result: Comparison) -> bool:
    told = "Both were executed again in float64, and the loss and the gradients of 8 parameters have the same value"
    return result.verdict.kind == "agree" and told in result.verdict.headline


@pytest.mark.parametrize("by", ["truth", "auto"])
def test_the_same_network_written_in_functions_agrees_by_its_loss_and_its_gradients(tmp_path: Path, by: str) -> None:
    reference, candidate = record(tmp_path / "r", Net()), record(tmp_path / "c", WrittenOut())
    assert is_proved(tensorprobe.compare(reference, candidate, by=by))
    assert is_proved(tensorprobe.compare(candidate, reference, by=by))


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_layers_agree_with_the_calls_that_they_are_made_of(tmp_path: Path, level: str) -> None:
    layers, calls = record(tmp_path / "layers", Net()), record_calls(tmp_path / "calls", Net(), level)
    assert is_proved(tensorprobe.compare(layers, calls, by="truth"))
    assert is_proved(tensorprobe.compare(calls, layers, by="truth"))


MISTAKES = [
    ("epsilon", ["NN_LayerNorm_0_forward"] * 2, "called with eps=0.01 where the reference had 1e-05"),
    ("activation", ["NN_GELU_0_forward", "NN_ReLU_0_forward"], "but compute different things from it"),
    (
        "scale",
        ["Tensor_add_0_forward", "Tensor_mul_0_forward"],
        "only the candidate calls Tensor_mul_0_forward before Tensor_add_0_forward",
    ),
    ("detached", ["Tensor_add_0_backward", "Tensor_detach_0_forward"], "it lets no gradient through"),
    ("residual", ["Tensor_add_0_forward", "NN_Linear_2_forward"], "only the reference calls "),
]


@pytest.mark.parametrize(("mistake", "calls", "words"), MISTAKES)
def test_a_mistake_is_named_with_its_words(tmp_path: Path, mistake: str, calls: list[str], words: str) -> None:
    result = tensorprobe.compare(record(tmp_path / "r", Net()), record(tmp_path / "c", Net(mistake)), by="truth")
    assert named(result) == calls
    assert words in result.verdict.headline


@pytest.mark.parametrize(("mistake", "calls", "words"), MISTAKES)
@pytest.mark.some(3)
def test_a_mistake_is_named_against_a_run_in_which_each_call_has_its_record(
    tmp_path: Path, mistake: str, calls: list[str], words: str
) -> None:
    reference = record_calls(tmp_path / "r", Net(), "L1")
    result = tensorprobe.compare(reference, record(tmp_path / "c", Net(mistake)), by="truth")
    assert named(result)[1] == calls[1]
    assert words.replace("NN_GELU_0_forward", "Functional.gelu.0.forward") in result.verdict.headline


@pytest.mark.parametrize(
    ("mistake", "texts"),
    [
        ("epsilon", {"x = self.norm(self.first(x))"}),
        ("scale", {'return self.last(y if self.mistake == "residual" else x + y)', "y = y * 1.01"}),
        ("detached", {'return self.last(y if self.mistake == "residual" else x + y)', "y = y.detach()"}),
    ],
)
def test_the_lines_of_both_runs_are_shown_also_of_a_gradient(tmp_path: Path, mistake: str, texts: set[str]) -> None:
    result = tensorprobe.compare(record(tmp_path / "r", Net()), record(tmp_path / "c", Net(mistake)), by="truth")
    assert set(lines(result)) == texts


def test_an_epsilon_has_the_same_words_where_growth_names_the_call(tmp_path: Path) -> None:
    result = tensorprobe.compare(record(tmp_path / "r", Net()), record(tmp_path / "c", Net("epsilon")), by="growth")
    assert "called with eps=0.01 where the reference had 1e-05" in result.verdict.headline
    different = [row.candidate_name for row in result.rows if row.status == "different"]
    assert "NN_LayerNorm_0_forward.settings.eps" in different


def test_data_that_only_a_layer_takes_is_told_from_what_the_layer_computes(tmp_path: Path) -> None:
    """The first layer is the only one that sees the data: it is a leaf of the step as any other."""

    def shift(net: nn.Module) -> None:
        nn.CrossEntropyLoss()(net(DATA + 0), LABELS).backward()

    def other(net: nn.Module) -> None:
        nn.CrossEntropyLoss()(net(DATA * 1.1), LABELS).backward()

    reference = record(tmp_path / "r", Net())
    assert is_proved(tensorprobe.compare(reference, record(tmp_path / "same", Net(), shift), by="truth"))
    result = tensorprobe.compare(reference, record(tmp_path / "c", Net(), other), by="truth")
    assert "Tensor_mul_0_forward of the candidate: it multiplies by 1.1" in result.verdict.headline


class Statistics(nn.Module):
    """Layers that keep statistics, draw and have states."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=eps), nn.ReLU(inplace=True)
        self.dropout, self.lstm = nn.Dropout(0.3), nn.LSTM(16, 5, batch_first=True)
        self.words, self.last = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.relu(self.norm(self.first(x))))
        return self.last(self.lstm(x.flatten(2))[0].mean(1) + self.words(torch.arange(4)))


def train_images(net: nn.Module) -> None:
    torch.manual_seed(2)
    x = torch.randn(4, 3, 6, 6)
    nn.CrossEntropyLoss()(net(x), LABELS).backward()


def test_layers_that_keep_statistics_draw_and_have_states_are_compared_too(tmp_path: Path) -> None:
    reference = record(tmp_path / "r", Statistics(), train_images)
    with tensorprobe.capture(net := Statistics(), tmp_path / "calls", level="L1", task="tensor"):
        train_images(net)
    result = tensorprobe.compare(reference, tmp_path / "calls", by="truth")
    assert result.verdict.kind == "agree" and "the gradients of 11 parameters" in result.verdict.headline
    result = tensorprobe.compare(reference, record(tmp_path / "c", Statistics(1e-2), train_images), by="truth")
    assert named(result) == ["NN_BatchNorm2d_0_forward"] * 2
    assert "called with eps=0.01 where the reference had 1e-05" in result.verdict.headline


# -- what cannot be compared so ----------------------------------------------------------------------------------------


def train_twice(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        train(net)
        optimizer.step()


def test_several_steps_in_one_dump_are_judged_by_growth_and_said_to_be_the_reason(tmp_path: Path) -> None:
    reference, candidate = record(tmp_path / "r", Net(), train_twice), record(tmp_path / "c", WrittenOut(), train_twice)
    with pytest.raises(
        UsageError,
        match=r"by truth: the reference holds more than one training step \(first\.weight changes, and no recorded "
        r"call writes to it\): record each step into a folder of its own",
    ):
        tensorprobe.compare(reference, candidate, by="truth")
    mistaken = record(tmp_path / "m", Net("epsilon"), train_twice)
    assert "called with eps=0.01" in tensorprobe.compare(reference, mistaken).verdict.headline


def forget_calls(folder: Path) -> None:
    """As an earlier version recorded layers."""
    path = folder / "rank0" / "dump.json"
    content = json.loads(path.read_text())
    for fields in content["data"].values():
        fields.pop("calls", None)
    path.write_text(json.dumps(content))


def test_layers_that_do_not_say_what_they_call_are_judged_by_growth_and_said_to_be_the_reason(tmp_path: Path) -> None:
    reference, candidate = record(tmp_path / "r", Net()), record(tmp_path / "c", Net("epsilon"))
    forget_calls(candidate)
    with pytest.raises(
        UsageError,
        match=r"by truth: .*rank0 does not say which calls NN_Linear_0_forward is made of: record it again with this "
        r"version, with filter_data=False",
    ):
        tensorprobe.compare(reference, candidate, by="truth")
    assert named(tensorprobe.compare(reference, candidate)) == ["NN_LayerNorm_0_forward"] * 2


def test_a_dump_whose_filter_left_numbers_out_says_how_to_record_it(tmp_path: Path) -> None:
    reference, candidate = record(tmp_path / "r", Net()), record(tmp_path / "c", Net("epsilon"), filter_data=True)
    with pytest.raises(UsageError, match=r"by truth: .* has no file for .*filter_data=False"):
        tensorprobe.compare(reference, candidate, by="truth")
    assert named(tensorprobe.compare(reference, candidate)) == ["NN_LayerNorm_0_forward"] * 2
