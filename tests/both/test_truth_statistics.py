"""A port to MindSpore, of which one side or both were recorded with statistics only: by what the runs mean."""

from __future__ import annotations

from pathlib import Path

import mindspore
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

import tensorprobe
from tests.mindspore_runtime import settle_mindspore

settle_mindspore()
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(6, 8)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, 6)
WEIGHTS = {
    "query": RANDOM.normal(size=(8, 8)).astype(np.float32),
    "key": RANDOM.normal(size=(8, 8)).astype(np.float32),
    "head": RANDOM.normal(size=(5, 8)).astype(np.float32),
    "scale": (1 + 0.1 * RANDOM.normal(size=8)).astype(np.float32),
    "bias": RANDOM.normal(size=8).astype(np.float32),
}
TASKS = [("statistics", "tensor"), ("tensor", "statistics"), ("statistics", "statistics")]


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, array in WEIGHTS.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(array)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = F.linear(x, self.query), F.linear(x, self.key)
        x = x + F.scaled_dot_product_attention(query, key, x)
        return F.linear(F.layer_norm(x, (8,), self.scale, self.bias, 1e-5), self.head)


class Candidate(nn.Cell):
    """Both projections in one, the weight of the head transposed, attention written out."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        joined = np.concatenate([WEIGHTS["query"], WEIGHTS["key"]])
        arrays = {"both": joined, "head": WEIGHTS["head"].T, "scale": WEIGHTS["scale"], "bias": WEIGHTS["bias"]}
        for name, array in arrays.items():
            content = mindspore.Tensor(np.ascontiguousarray(array))
            setattr(self, name, mindspore.Parameter(content, name=name))
        self.fault = fault

    def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
        query, key = mint.chunk(mint.matmul(x, self.both.T), 2, -1)
        scores = mint.matmul(query, key.T) * (8**-0.5 if self.fault != "scale" else 8**-0.6)
        x = x + mint.matmul(ops.softmax(scores, 0 if self.fault == "axis" else -1), x)
        mean = mint.mean(x, -1, True)
        centred = x - mean
        variance = mint.mean(centred * centred, -1, True)
        x = centred / mint.sqrt(variance + (1e-2 if self.fault == "epsilon" else 1e-5)) * self.scale + self.bias
        return mint.matmul(x, self.head)


def compare(tmp_path: Path, tasks: tuple[str, str], fault: str = "") -> tensorprobe.Comparison:
    reference, candidate = Reference(), Candidate(fault)
    with tensorprobe.capture(reference, tmp_path / "r", level="L1", task=tasks[0]):
        F.cross_entropy(reference(torch.from_numpy(X)), torch.from_numpy(LABELS)).backward()

    def compute_loss(x: mindspore.Tensor, labels: mindspore.Tensor) -> mindspore.Tensor:
        return ops.cross_entropy(candidate(x), labels)

    compute = mindspore.value_and_grad(compute_loss, None, candidate.trainable_params())
    with tensorprobe.capture(candidate, tmp_path / "c", level="L1", task=tasks[1]):
        compute(mindspore.Tensor(X), mindspore.Tensor(LABELS.astype(np.int32)))
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c")


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
def test_a_right_port_agrees(tasks: tuple[str, str], tmp_path: Path) -> None:
    result = compare(tmp_path, tasks)
    assert result.verdict.kind == "agree", result.verdict
    assert "executed again in float64" in result.verdict.headline


@pytest.mark.parametrize("tasks", TASKS, ids=" and ".join)
@pytest.mark.parametrize(("fault", "named"), [("scale", "mul"), ("axis", "softmax"), ("epsilon", "add")])
@pytest.mark.some(2)
def test_a_mistake_is_named(fault: str, named: str, tasks: tuple[str, str], tmp_path: Path) -> None:
    result = compare(tmp_path, tasks, fault)
    assert result.verdict.call is not None, result.verdict
    assert named in result.verdict.call.candidate[-1].name, result.verdict
