"""MindSpore on a CPU: with one thread an operation a program repeats its bits, and these tests rely on it.

With more, MindSpore (2.10) tries out by the clock into how many pieces it cuts an operation, five calls each way, and
the elements next to a cut are computed by other instructions.
"""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.mindspore_runtime import settle_mindspore

settle_mindspore()

X = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
LABELS = np.array([0, 1, 2], np.int32)


class Net(nn.Cell):
    """99 numbers go through ELU: no half of them is a multiple of what an instruction takes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.elu, self.down = nn.Dense(7, 33), nn.ELU(), nn.Dense(33, 3)

    def construct(self, x: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(self.down(self.elu(self.up(x))), labels)


def train() -> bytes:
    """Three steps, and the bits of all that they computed."""
    mindspore.set_seed(3)
    net = Net()
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    run = mindspore.value_and_grad(net, None, optimizer.parameters)
    found = []
    for _ in range(3):
        loss, gradients = run(Tensor(X), Tensor(LABELS))
        optimizer(gradients)
        found += [value.asnumpy().tobytes() for value in (loss, *gradients)]
    return b"".join([*found, *(parameter.asnumpy().tobytes() for parameter in net.get_parameters())])


def test_twelve_runs_in_one_process_give_the_same_bits() -> None:
    assert len({train() for _ in range(12)}) == 1


@pytest.mark.parametrize("name", ["elu", "softplus", "tanh", "gelu"])
def test_forty_calls_give_the_same_bits(name: str) -> None:
    x = Tensor(np.random.default_rng(0).normal(size=99).astype(np.float32))
    assert len({getattr(ops, name)(x).asnumpy().tobytes() for _ in range(40)}) == 1
