"""`tensorprobe.check` with cells of MindSpore."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

import tensorprobe
from tensorprobe.errors import UsageError


class Network(nn.Cell):
    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.first = nn.Dense(8, 16, weight_init="ones", bias_init="zeros")
        self.batch = nn.BatchNorm1d(16)
        self.norm = nn.LayerNorm((16,), epsilon=epsilon)
        self.last = nn.Dense(16, 4, weight_init="ones")

    def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
        position = mindspore.Tensor(np.arange(16, dtype=np.float32))
        return self.last(ops.gelu(self.norm(self.batch(self.first(x)) + position)))


def make_input() -> mindspore.Tensor:
    return mindspore.Tensor(np.sin(np.linspace(-2, 2, 40, dtype=np.float32)).reshape(5, 8))


def test_a_cell_agrees_with_itself_and_is_left_as_it_was() -> None:
    network = Network().set_train(True)
    before = {one.name: one.asnumpy().copy() for one in network.get_parameters()}
    result = tensorprobe.check(network, network, make_input())
    assert result, result.verdict
    assert any(call.name.endswith("parameters_grad") for call in result.ranks[0].calls)
    assert all(np.array_equal(before[one.name], one.asnumpy()) for one in network.get_parameters())
    assert network.training and network.batch.training


def test_a_planted_fault_in_a_cell_is_named() -> None:
    result = tensorprobe.check(Network(), Network(epsilon=0.1), make_input())
    assert "LayerNorm.0.forward in module norm: called with epsilon=0.1" in result.verdict.headline


def test_float16_of_a_cell_agrees_with_float32() -> None:
    network = nn.SequentialCell(nn.Dense(8, 16), nn.GELU(), nn.Dense(16, 4))
    result = tensorprobe.check(network, network, make_input(), dtype=mindspore.float16)
    assert result, result.verdict
    assert all(one.dtype == mindspore.float32 for one in network.get_parameters())


def test_another_device_is_refused_with_what_to_do() -> None:
    network = Network()
    with pytest.raises(UsageError, match="MindSpore computes on one device in a process"):
        tensorprobe.check(network, network, make_input(), device="Ascend")
