"""A step with two backward passes, of which the second takes what the first has made: a generator, and the one that
judges it. MindSpore asks for the gradients of each network alone."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ops

import tensorprobe
from tensorprobe.compare.result import Comparison

RANDOM = np.random.default_rng(0)
DATA = RANDOM.normal(size=(6, 4)).astype(np.float32)
WEIGHTS = {name: (0.5 * RANDOM.normal(size=(4, 4))).astype(np.float32) for name in ("maker", "judge")}
SCALE = RANDOM.uniform(0.5, 1.5, size=4).astype(np.float32)


def record_reference(folder: Path) -> Path:
    maker, judge = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    norm = torch.nn.BatchNorm1d(4)
    for layer, name in ((maker, "maker"), (judge, "judge")):
        layer.weight.data = torch.from_numpy(WEIGHTS[name])
    norm.weight.data = torch.from_numpy(SCALE)
    model = torch.nn.ModuleDict({"maker": maker, "judge": torch.nn.Sequential(judge, norm)})
    x = torch.from_numpy(DATA)
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model["judge"].requires_grad_(False)
        made = torch.tanh(maker(x))
        ((made - x).abs().mean() - model["judge"](made).square().mean()).backward()
        model["judge"].requires_grad_(True)
        (model["judge"](made.detach()).square() + torch.relu(1 - model["judge"](x))).mean().backward()
    return folder


class Layers(ms.nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.maker = ms.nn.Dense(4, 4, has_bias=False)
        self.judge = ms.nn.SequentialCell(ms.nn.Dense(4, 4, has_bias=False), ms.nn.BatchNorm1d(4))
        self.maker.weight.set_data(ms.Tensor(WEIGHTS["maker"]))
        self.judge[0].weight.set_data(ms.Tensor(WEIGHTS["judge"]))
        self.judge[1].gamma.set_data(ms.Tensor(SCALE))


def record_candidate(folder: Path, *, factor: float) -> Path:
    model = Layers()
    model.set_train()
    x = ms.Tensor(DATA)

    def make(x: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        made = ops.tanh(model.maker(x))
        return (made - x).abs().mean() - factor * model.judge(made).square().mean(), made

    def decide(made: ms.Tensor, x: ms.Tensor) -> ms.Tensor:
        return (model.judge(made).square() + ops.relu(1 - model.judge(x))).mean()

    optimizers = [ms.nn.SGD(part.trainable_params(), 0.1) for part in (model.maker, model.judge)]
    passes = (
        ms.value_and_grad(make, None, optimizers[0].parameters, has_aux=True),
        ms.value_and_grad(decide, None, optimizers[1].parameters),
    )
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        (_, made), gradients = passes[0](x)
        optimizers[0](gradients)
        _, gradients = passes[1](made, x)
        optimizers[1](gradients)
    return folder


def compare(tmp_path: Path, factor: float) -> Comparison:
    return tensorprobe.compare(record_reference(tmp_path / "r"), record_candidate(tmp_path / "c", factor=factor))


def test_each_network_has_the_gradients_of_its_own_pass(tmp_path: Path) -> None:
    verdict = compare(tmp_path, 1.0).verdict
    assert verdict.kind == "agree", verdict.headline
    assert "2 losses and the gradients of 4 parameters have the same value" in verdict.headline


@pytest.mark.parametrize("factor", [0.9])
def test_a_wrong_weight_of_the_first_pass_is_found(factor: float, tmp_path: Path) -> None:
    verdict = compare(tmp_path, factor).verdict
    assert verdict.kind != "agree"
    assert verdict.call is not None and verdict.call.candidate[-1].name.startswith(
        ("Tensor.__mul__", "Tensor.__rmul__")
    )
