"""One network written with nn and ops, and once more with mint: compare finds out what belongs together."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_v", "3")

from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


class InOps(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(8, 8), nn.Dense(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def construct(self, x: Tensor) -> Tensor:
        y = ops.relu(self.up(x))
        scores = ops.softmax(ops.matmul(y, ops.transpose(y, (1, 0))) / 2.0, -1)
        mixed = self.down(ops.matmul(scores, y)) + x
        return ops.reduce_sum(ops.concat((self.norm(mixed), ops.expand_dims(mixed, 0)[0]), 1))


class InMint(nn.Cell):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.up, self.down = mint.nn.Linear(8, 8), mint.nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = scale

    def construct(self, x: Tensor) -> Tensor:
        y = mint.nn.functional.relu(self.up(x))
        products = mint.matmul(y, mint.permute(y, (1, 0)))
        scores = mint.nn.functional.softmax(mint.div(products, self.scale), -1)
        mixed = mint.add(self.down(scores @ y), x)
        return mint.sum(mint.cat((self.norm(mixed), mint.unsqueeze(mixed, 0)[0]), 1))


def record(folder: Path, net: nn.Cell, level: str) -> Path:
    draw = np.random.default_rng(1)
    for parameter in (*net.up.get_parameters(), *net.down.get_parameters()):
        parameter.set_data(Tensor(draw.standard_normal(parameter.shape).astype(np.float32)))
    net.set_train()
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level=level)
    try:
        debugger.start(net)
        weights: list[Parameter] = net.trainable_params()
        mindspore.value_and_grad(lambda: net(Tensor(X)), None, weights)()
        debugger.stop()
        debugger.step()
    finally:
        PrecisionDebugger.reset()
    return folder


def compare(folder: Path, level: str, **edit: Any) -> Comparison:
    return tensorprobe.compare(record(folder / "ops", InOps(), level), record(folder / "mint", InMint(**edit), level))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_they_agree_and_every_call_of_the_model_has_its_partner(tmp_path: Path, level: str) -> None:
    result = compare(tmp_path, level)

    assert result, result.verdict
    assert result.ranks[0].only_reference == result.ranks[0].only_candidate == ()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_another_scale_is_found_across_the_spellings(tmp_path: Path, level: str) -> None:
    verdict = compare(tmp_path, level, scale=3.0).verdict

    assert verdict.call is not None
    assert (verdict.call.reference[-1].name, verdict.call.candidate[-1].name) == (
        "Tensor.__truediv__.0.forward",
        "Mint.div.0.forward",
    )
