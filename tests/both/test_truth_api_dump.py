"""Dumps of api_dump of both frameworks, compared by what they mean: MindSpore's layers are their calls, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from mindspore import Tensor, ops

import tensorprobe
from tensorprobe import migrator
from tensorprobe.compare.result import Comparison
from tests.migrator.api_dump_run import forget_session

DATA = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)
LABELS = np.array([0, 1, 2, 1])


class Reference(torch.nn.Module):
    """Layers of which one keeps statistics, one is switched off, one has an epsilon, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.batch = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.norm, self.dropout = torch.nn.LayerNorm(64), torch.nn.Dropout(0.0)
        self.first, self.second = torch.nn.Linear(64, 8), torch.nn.Linear(8, 8)
        self.activation, self.last = torch.nn.GELU(), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.batch(self.conv(x)))
        x = self.first(self.norm(x.flatten(1)))
        return self.last(x + self.dropout(self.second(self.activation(x))))


class Candidate(mindspore.nn.Cell):
    """The same in MindSpore, with one mistake or none."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        nn = mindspore.nn
        self.conv, self.batch = nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True), nn.BatchNorm2d(4)
        self.norm, self.dropout = nn.LayerNorm((64,), epsilon=1e-2 if mistake == "epsilon" else 1e-5), nn.Dropout(p=0.0)
        self.first, self.second = nn.Dense(64, 8), nn.Dense(8, 8)
        self.activation, self.last = nn.ReLU() if mistake == "activation" else nn.GELU(False), nn.Dense(8, 3)
        self.mistake = mistake
        self.set_train()

    def construct(self, x: Tensor) -> Tensor:
        x = ops.relu(self.batch(self.conv(x)))
        x = self.first(self.norm(x.flatten(start_dim=1)))
        y = self.dropout(self.second(self.activation(x)))
        if self.mistake == "scale":
            y = y * 1.01
        if self.mistake == "detached":
            y = ops.stop_gradient(y)
        return self.last(y if self.mistake == "residual" else x + y)


def run_reference(net: Reference) -> None:
    torch.nn.CrossEntropyLoss()(net(torch.from_numpy(DATA)), torch.from_numpy(LABELS)).backward()


def make_candidate(mistake: str) -> Candidate:
    net = Candidate(mistake)
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    weights = Reference().state_dict()
    for name, parameter in net.parameters_and_names():
        path, _, word = name.rpartition(".")
        parameter.set_data(Tensor(weights[f"{path}.{names.get(word, word)}"].numpy()))
    return net


def run_candidate(net: Candidate) -> None:
    loss = mindspore.nn.CrossEntropyLoss()
    compute = mindspore.value_and_grad(lambda x, y: loss(net(x), y), None, net.trainable_params())
    compute(Tensor(DATA), Tensor(LABELS, mindspore.int32))


def record(folder: Path, net: Any, run: Callable[[Any], None], level: str) -> Path:
    if level == "api_dump":
        forget_session()
        migrator.api_dump_init(net, folder, retain_backward=True)
        migrator.api_dump_start(filter_data=False)
        run(net)
        migrator.api_dump_stop()
        return folder
    with tensorprobe.capture(net, folder, level=level, task="tensor"):
        run(net)
    return folder


class Recorded:
    """Dumps, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cache  # noqa: B019  it lives as long as the tests
    def pytorch(self, level: str = "api_dump") -> Path:
        return record(self._folder / f"pytorch_{level}", Reference(), run_reference, level)

    @cache  # noqa: B019
    def mindspore(self, mistake: str = "", level: str = "api_dump") -> Path:
        return record(self._folder / f"mindspore_{mistake}_{level}", make_candidate(mistake), run_candidate, level)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    yield Recorded(tmp_path_factory.mktemp("dumps"))
    forget_session()


def is_proved(result: Comparison) -> bool:
    told = "Both were executed again in float64, and the loss and "
    assert result.verdict.kind == "agree", result.verdict.headline
    assert not any(text.startswith("not executed again") for text in result.verdict.evidence)
    return told in result.verdict.headline and " parameters have the same value" in result.verdict.headline


def test_all_calls_of_a_dump_of_mindspore_are_what_they_should_be(recorded: Recorded) -> None:
    (run,) = tensorprobe.truth(recorded.mindspore()).runs
    assert not run.findings and not run.unchecked
    assert run.coverage.replayed == run.coverage.call_count
    (reference,) = tensorprobe.truth(recorded.pytorch()).runs
    assert run.losses[0][2] == pytest.approx(reference.losses[0][2], rel=0, abs=1e-12)


@pytest.mark.parametrize("by", ["truth", "auto"])
def test_a_right_port_agrees_with_its_original(recorded: Recorded, by: str) -> None:
    assert is_proved(tensorprobe.compare(recorded.pytorch(), recorded.mindspore(), by=by))
    assert is_proved(tensorprobe.compare(recorded.mindspore(), recorded.pytorch(), by=by))


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_layers_of_one_framework_agree_with_single_calls_of_the_other_and_of_their_own(
    recorded: Recorded, level: str
) -> None:
    assert is_proved(tensorprobe.compare(recorded.pytorch(level), recorded.mindspore(), by="truth"))
    assert is_proved(tensorprobe.compare(recorded.pytorch(), recorded.mindspore(level=level), by="truth"))
    assert is_proved(tensorprobe.compare(recorded.mindspore(level=level), recorded.mindspore(), by="truth"))


MISTAKES = [
    ("epsilon", "NN_LayerNorm_0_forward", ""),
    ("activation", "NN_ReLU_0_forward", "but compute different things from it"),
    ("scale", "Tensor___mul___0_forward", "only the candidate calls "),
    ("detached", "Functional_stop_gradient_0_forward", "it lets no gradient through"),
    ("residual", "NN_Dense_2_forward", "only the reference calls "),
]


@pytest.mark.parametrize(("mistake", "call", "words"), MISTAKES)
@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.some(2)
def test_a_mistake_of_a_port_is_named_with_its_words_and_both_lines(
    recorded: Recorded, framework: str, mistake: str, call: str, words: str
) -> None:
    reference = recorded.pytorch() if framework == "pytorch" else recorded.mindspore()
    verdict = tensorprobe.compare(reference, recorded.mindspore(mistake), by="truth").verdict
    assert verdict.call is not None and verdict.call.candidate[-1].name == call, verdict.headline
    assert words in verdict.headline
    shown = [text for text in verdict.evidence if "line: " in text]
    is_one = len(shown) == 1 and shown[0].startswith("line: ")
    assert is_one or [text.split()[0] for text in shown] == ["reference", "candidate"]


def test_an_epsilon_of_a_layer_is_told_in_the_words_of_its_framework(recorded: Recorded) -> None:
    for level in ("api_dump", "L1"):
        verdict = tensorprobe.compare(
            recorded.mindspore(level=level), recorded.mindspore("epsilon"), by="truth"
        ).verdict
        assert "called with epsilon=0.01 where the reference had 1e-05" in verdict.headline


def test_a_detached_branch_is_named_where_the_other_run_has_more_calls_on_the_way(recorded: Recorded) -> None:
    """The product inside a layer has no counterpart: the gradient that goes one way only is followed past it, to the
    call that stops it in the other run."""
    verdict = tensorprobe.compare(recorded.mindspore(level="L1"), recorded.mindspore("detached"), by="truth").verdict
    assert "Tensor.__add__.0.backward (candidate: Functional_stop_gradient_0_forward)" in verdict.headline
    assert "it lets no gradient through, but the reference does" in verdict.headline


class Drawing(mindspore.nn.Cell):
    """A dropout behind a ReLU: where its input is zero, only the gradient tells what it kept."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.dropout, self.last = mindspore.nn.ReLU(), mindspore.nn.Dropout(p=0.5), mindspore.nn.Dense(36, 3)
        self.set_train()

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(self.relu(x * self.last.bias.sum())).mean(1).flatten(start_dim=1))


def test_a_dropout_that_draws_keeps_what_it_kept(tmp_path: Path) -> None:
    net = Drawing()
    net.last.bias.set_data(Tensor(np.array([1.0, 2.0, 3.0], np.float32)))
    dump = record(tmp_path, net, run_candidate, "api_dump")  # type: ignore[arg-type]
    (run,) = tensorprobe.truth(dump).runs
    assert not run.findings and run.coverage.replayed == run.coverage.call_count
