"""One framework's run calls a function at once, the other's writes it out with a mistake: which call is named?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mindspore import mint, ops

import tensorprobe
from tensorprobe import mindspore as mindspore_face
from tensorprobe import pytorch as pytorch_face
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((6, 8)).astype(np.float32)
WEIGHTS = {name: RANDOM.standard_normal((8, 8)).astype(np.float32) for name in ("before", "after")}
SCALE, BIAS = (RANDOM.standard_normal(8).astype(np.float32) for _ in range(2))
Compute = Callable[..., Any]


class TorchModel(torch.nn.Module):
    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        for name, array in {**WEIGHTS, "scale": SCALE, "bias": BIAS}.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(array)))

    def forward(self, x: Any) -> Any:
        return (self.compute(self, x @ self.before) @ self.after).square().mean()


class MindSporeModel(mindspore.nn.Cell):
    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        for name, array in {**WEIGHTS, "scale": SCALE, "bias": BIAS}.items():
            setattr(self, name, mindspore.Parameter(mindspore.Tensor(array), name=name))

    def construct(self, x: Any) -> Any:
        return mint.mean(mint.square(mint.matmul(self.compute(self, mint.matmul(x, self.before)), self.after)))


def record_torch(folder: Path, compute: Compute) -> Path:
    model = TorchModel(compute)
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model(torch.from_numpy(X)).backward()
    return folder


def record_mindspore(folder: Path, compute: Compute) -> Path:
    model = MindSporeModel(compute)
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        mindspore.value_and_grad(model, None, model.trainable_params())(mindspore.Tensor(X))
    return folder


@pytest.fixture(autouse=True)
def faces_as_before() -> Iterator[None]:
    yield
    pytorch_face.PrecisionDebugger.reset()
    mindspore_face.PrecisionDebugger.reset()


def normalise_torch(model: Any, x: Any) -> Any:
    return F.layer_norm(x, (8,), model.scale, model.bias, 1e-5)


def normalise_mindspore(model: Any, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - mint.mean(x, -1, True)
    size = mint.sqrt(mint.mean(mint.square(centred), -1, True) + epsilon)
    return centred / size * model.scale + model.bias


def test_a_wrong_epsilon_of_a_written_normalisation_in_mindspore_is_named_inside_that_of_torch(tmp_path: Path) -> None:
    reference = record_torch(tmp_path / "reference", normalise_torch)
    right = record_mindspore(tmp_path / "right", normalise_mindspore)
    assert tensorprobe.compare(reference, right, by="truth").verdict.kind == "agree"

    wrong = record_mindspore(tmp_path / "wrong", lambda model, x: normalise_mindspore(model, x, 1e-3))
    headline = tensorprobe.compare(reference, wrong, by="truth").verdict.headline
    assert "of the candidate and add inside Functional.layer_norm.0.forward of the reference" in headline
    assert "0.001 where the reference had 1e-05" in headline


def share_mindspore(model: Any, x: Any) -> Any:
    return ops.softmax(x, -1) * model.scale + model.bias


def share_torch(model: Any, x: Any, dim: int = -1) -> Any:
    grown = torch.exp(x - x.amax(-1, keepdim=True))
    return grown / grown.sum(dim, keepdim=True) * model.scale + model.bias


def test_a_sum_over_a_wrong_axis_written_in_torch_is_named_inside_the_softmax_of_mindspore(tmp_path: Path) -> None:
    reference = record_mindspore(tmp_path / "reference", share_mindspore)
    right = record_torch(tmp_path / "right", share_torch)
    assert tensorprobe.compare(reference, right, by="truth").verdict.kind == "agree"

    wrong = record_torch(tmp_path / "wrong", lambda model, x: share_torch(model, x, dim=0))
    verdict = tensorprobe.compare(reference, wrong, by="truth").verdict
    assert verdict.call is not None
    assert verdict.call.candidate[-1].name == "Tensor.sum.0.forward", verdict.headline
    assert f"and sum inside {verdict.call.reference[-1].name} of the reference" in verdict.headline
    assert "softmax" in verdict.call.reference[-1].name
    assert "dim=[0] where the reference had [1]" in verdict.headline
