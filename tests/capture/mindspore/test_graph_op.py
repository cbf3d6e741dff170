"""Python functions inside a compiled graph, without the files."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from tensorprobe.capture.mindspore.executor import wait_for_results
from tensorprobe.capture.mindspore.graph_op import (
    Array,
    bfloat16_bits,
    is_compiled,
    make_taps,
    writes_from_python,
)
from tensorprobe.errors import UsageError

received: list[tuple[str, str, list[float], str]] = []


def receive(folder: str, name: str, array: Array, dtype: str) -> None:
    received.append((folder, name, array.tolist(), dtype))


ValueTap, GradientTap = make_taps(receive)


@pytest.mark.parametrize(("target", "expected"), [("CPU", True), ("Ascend", False), ("GPU", False)])
def test_the_device_says_who_writes(target: str, expected: bool) -> None:
    assert writes_from_python(target) is expected


def test_an_unknown_device_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match="the device target is CPU, Ascend or GPU, not 'TPU'"):
        writes_from_python("TPU")


def test_taps_with_any_receiver_hand_over_values_and_gradients() -> None:
    class Net(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            ValueTap("folder", "x")(x)
            y = GradientTap("folder", "y")(x * 2)
            return (y * y).sum()

    received.clear()
    net = Net()
    net.construct = ms.jit(net.construct)
    ms.grad(net)(Tensor([1.0, 3.0], ms.float32))
    wait_for_results()
    assert received == [("folder", "x", [1.0, 3.0], "float32"), ("folder", "y", [4.0, 12.0], "float32")]


def test_python_is_not_the_compiler() -> None:
    assert is_compiled() is False

    @ms.jit
    def ask(x: Tensor) -> Tensor:
        return x + 1 if is_compiled() else x

    assert ask(Tensor([1.0])).asnumpy().tolist() == [2.0]


@pytest.mark.parametrize("shape", [(), (3, 2), (0, 2)])
def test_the_bits_of_a_widened_bfloat16_are_its_upper_half(shape: tuple[int, ...]) -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, size=shape, dtype=np.uint16)
    widened = (np.asarray(bits, np.uint32).reshape(-1) << np.uint32(16)).view(np.float32).reshape(shape)
    got = bfloat16_bits(widened)
    assert got.dtype == np.dtype("V2") and got.shape == shape and got.tobytes() == bits.tobytes()
