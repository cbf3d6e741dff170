"""Whole training steps of both frameworks, each with its update, compared by what they mean: MindSpore gives gradients
back as values, changes parameters by assigning them, and its own optimizers are one compiled call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ops

import tensorprobe
from tensorprobe import mindspore as mindspore_face
from tensorprobe import pytorch as pytorch_face
from tensorprobe.compare.result import Comparison
from tests.length import IS_LONG

RANDOM = np.random.default_rng(0)
DATA = RANDOM.normal(size=(3, 6, 4)).astype(np.float32)
GOALS = RANDOM.integers(0, 3, size=(3, 6))
RATE, MOMENTUM, SLOW, REACH = 0.1, 0.9, 0.8, 0.05
STEPS = 3 if IS_LONG else 2


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        self.norm = torch.nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))) + self.first(x))


class Candidate(ms.nn.Cell):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.enter, self.leave = ms.nn.Dense(4, 5), ms.nn.Dense(5, 3)
        self.ln = ms.nn.LayerNorm((5,), epsilon=1e-5)
        names = {"enter": "first", "leave": "second", "ln.gamma": "norm.weight", "ln.beta": "norm.bias"}
        for name, parameter in self.parameters_and_names():
            head = name.partition(".")[0]
            parameter.set_data(ms.Tensor(weights[names.get(name, name.replace(head, names.get(head, head)))]))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h = self.enter(x)
        return self.leave(ops.tanh(self.ln(h)) + h)


class ReferenceTraining:
    """SGD with momentum; `way` is what is done besides."""

    def __init__(self, way: str) -> None:
        self.network, self.way = Reference(), way
        if way == "frozen":
            self.network.first.requires_grad_(False)
        self.trained = [one for one in self.network.parameters() if one.requires_grad]
        self.optimizer = torch.optim.SGD(self.trained, lr=RATE, momentum=MOMENTUM)
        self.slow = [one.detach().clone() for one in self.trained]

    def step(self, x: np.ndarray, goal: np.ndarray) -> None:
        self.optimizer.zero_grad()
        self._go_back(x, goal)
        if self.way == "sharp":
            before = [one.detach().clone() for one in self.trained]
            with torch.no_grad():
                for one in self.trained:
                    one.add_(one.grad * REACH)
            self.optimizer.zero_grad()
            self._go_back(x, goal)
            with torch.no_grad():
                for one, old in zip(self.trained, before, strict=True):
                    one.copy_(old)
        if self.way == "clipped":
            torch.nn.utils.clip_grad_norm_(self.trained, 0.1)
        self.optimizer.step()
        if self.way == "average":
            with torch.no_grad():
                for slow, one in zip(self.slow, self.trained, strict=True):
                    slow.mul_(SLOW).add_(one, alpha=1 - SLOW)

    def _go_back(self, x: np.ndarray, goal: np.ndarray) -> None:
        torch.nn.functional.cross_entropy(self.network(torch.from_numpy(x)), torch.from_numpy(goal)).backward()


class CandidateTraining:
    """The same; the update is written out, or the library's."""

    def __init__(self, way: str, mistake: str) -> None:
        weights = {name: array.detach().numpy() for name, array in Reference().state_dict().items()}
        self.network, self.way, self.mistake = Candidate(weights), way, mistake
        self.trained = list(self.network.trainable_params())
        if way == "frozen":
            self.trained = [one for one in self.trained if not one.name.startswith("enter")]
        rate = RATE * 1.01 if mistake == "rate" else RATE
        self.optimizer = ms.nn.Momentum(self.trained, rate, MOMENTUM) if way == "average" else None
        self.rate, self.moments = rate, [None] * len(self.trained)
        self.slow = [ms.Tensor(one.asnumpy()) for one in self.trained]

    def compute_loss(self, x: ms.Tensor, goal: ms.Tensor) -> ms.Tensor:
        logs = ops.log_softmax(self.network(x), -1)
        return -(logs * ops.one_hot(goal, 3).astype(ms.float32)).sum(-1).mean()

    def step(self, x: np.ndarray, goal: np.ndarray) -> None:
        given = ms.Tensor(x), ms.Tensor(goal, ms.int32)
        compute = ms.value_and_grad(self.compute_loss, None, self.trained)
        _, gradients = compute(*given)
        if self.way == "sharp":
            before = [one.value() * 1 for one in self.trained]
            for one, gradient in zip(self.trained, gradients, strict=True):
                ops.assign(one, one + gradient * (2 * REACH if self.mistake == "reach" else REACH))
            _, gradients = compute(*given)
            for one, old in zip(self.trained, before, strict=True):
                ops.assign(one, old)
        if self.way == "clipped":
            norm = ops.sqrt(sum(ops.square(one).sum() for one in gradients))
            gradients = [one * ops.minimum(0.1 / (norm + 1e-6), ms.Tensor(1.0)) for one in gradients]
        self._update(gradients)
        if self.way == "average":
            keep = 1 - SLOW if self.mistake == "keep" else SLOW
            self.slow = [keep * slow + (1 - keep) * one for slow, one in zip(self.slow, self.trained, strict=True)]

    def _update(self, gradients: list[ms.Tensor]) -> None:
        if self.optimizer is not None:
            self.optimizer(tuple(gradients))
            return
        for place, (one, gradient) in enumerate(zip(self.trained, gradients, strict=True)):
            moment = gradient if self.moments[place] is None else self.moments[place] * MOMENTUM + gradient
            self.moments[place] = moment
            ops.assign(one, one - self.rate * moment)


@pytest.fixture(autouse=True)
def forget_debuggers() -> Iterator[None]:
    yield
    pytorch_face.PrecisionDebugger.reset()
    mindspore_face.PrecisionDebugger.reset()


def compare(folder: Path, way: str, mistake: str = "") -> Comparison:
    sides = (pytorch_face, ReferenceTraining(way)), (mindspore_face, CandidateTraining(way, mistake))
    paths = [folder / "reference", folder / "candidate"]
    for path, (face, training) in zip(paths, sides, strict=True):
        debugger = face.PrecisionDebugger(dump_path=str(path), level="L1", task="tensor")
        for x, goal in zip(DATA[:STEPS], GOALS[:STEPS], strict=True):
            debugger.start(training.network)
            training.step(x, goal)
            debugger.stop()
            debugger.step()
    return tensorprobe.compare(*paths)


@pytest.mark.parametrize("way", ["plain", "sharp", "clipped", "frozen", "average"])
@pytest.mark.some(2)
def test_a_training_loop_and_its_port_agree_in_all_steps(tmp_path: Path, way: str) -> None:
    result = compare(tmp_path, way)
    assert [rank.verdict.kind for rank in result] == ["agree"] * STEPS, result.verdict.headline
    assert all("executed again" in rank.verdict.headline for rank in result)
    if way in ("plain", "clipped", "sharp"):
        assert all("their updates" in rank.verdict.headline for rank in result)


@pytest.mark.parametrize(
    ("way", "mistake", "step", "line"),
    [
        ("plain", "rate", 0, "self.rate * moment"),
        pytest.param("clipped", "rate", 0, "self.rate * moment", marks=pytest.mark.long),
        ("average", "rate", 0, "self.optimizer(tuple(gradients))"),
        ("average", "keep", 0, "(1 - keep) * one"),
        ("sharp", "reach", 0, "2 * REACH"),
    ],
)
def test_a_mistake_in_the_update_is_named_in_the_step_that_makes_it(
    tmp_path: Path, way: str, mistake: str, step: int, line: str
) -> None:
    rank = list(compare(tmp_path, way, mistake))[step]
    assert rank.verdict.kind != "agree"
    assert any(line in one for one in rank.verdict.evidence if "candidate line" in one), rank.verdict
