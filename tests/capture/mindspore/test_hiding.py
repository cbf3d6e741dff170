"""The program's own dispatch modes see what they see without a capture: the same operations, in the same order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import tensorprobe
from tests.capture.mindspore.dump import only_step

try:
    from mindspore.utils import MsDispatchMode
except ImportError:
    pytest.skip("MindSpore before 2.9 has no dispatch modes", allow_module_level=True)

LEVELS = ("L0", "L1", "mix", "debug")
TASKS = ("statistics", "tensor", "structure")
WAYS: dict[str, dict[str, Any]] = {
    **{f"{level} {task}": {"level": level, "task": task} for level in LEVELS for task in TASKS},
    "md5": {"summary_mode": "md5"},
    "hash": {"summary_mode": "hash"},
    "async_dump": {"task": "tensor", "async_dump": True},
    "on_nonfinite": {"on_nonfinite": "tensors"},
    "list": {"list": ["Dense"]},
}


class Watch(MsDispatchMode):
    """Notes what MindSpore computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        self.seen.append(str(func.name))
        return func(*args, **(kwargs or {}))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Dense(8, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(p=0.1),
            nn.Dense(8, 4),
        )

    def construct(self, x: Tensor) -> Tensor:
        y = self.drop(ops.relu(self.norm(self.first(x))) * 2)
        y[0, 0] = 1.0
        return self.last(y + y.sum())


def make_net() -> Net:
    mindspore.set_seed(0)
    return Net().set_train()


def train(net: Net, run: Any, watch: AbstractContextManager[Any]) -> None:
    """Two steps; `watch` is there from the first forward to the end of the last step."""
    optimizer, x = nn.Adam(net.trainable_params()), Tensor(np.random.RandomState(0).randn(4, 8).astype(np.float32))

    def compute_loss(x: Tensor) -> Tensor:
        result = net(x)
        if run is not None:
            run.save({"result": [result]}, "result")
        return result.square().sum()

    compute = mindspore.value_and_grad(compute_loss, None, optimizer.parameters)
    with watch:
        for _ in range(2):
            optimizer(compute(x)[1])
            if run is not None:
                run.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(4)
def test_a_mode_entered_inside_the_window_sees_the_same_as_without_a_capture(tmp_path: Path, way: str) -> None:
    plain, watch = Watch(), Watch()
    train(make_net(), None, plain)
    net = make_net()
    with tensorprobe.capture(net, tmp_path, **WAYS[way]) as run:
        train(net, run, watch)
    assert watch.seen == plain.seen and len(plain.seen) > 50
    assert only_step(tmp_path).read("run.json")["coverage"]["failed"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(4)
def test_a_mode_entered_before_the_window_sees_the_same_as_without_a_capture(tmp_path: Path, way: str) -> None:
    with Watch() as plain:
        train(make_net(), None, nullcontext())
    with Watch() as watch:
        net = make_net()
        with tensorprobe.capture(net, tmp_path, **WAYS[way]) as run:
            train(net, run, nullcontext())
    assert watch.seen == plain.seen


def test_a_mode_that_the_program_leaves_after_a_step_is_left(tmp_path: Path) -> None:
    watch, x = Watch(), Tensor([1.0, 2.0])
    with tensorprobe.capture(make_net(), tmp_path) as run:
        with watch:
            ops.exp(x)
            run.step()
            ops.exp(x)
        ops.relu(x)
    ops.relu(x)
    assert watch.seen == ["Exp", "Exp"]
    assert list(only_step(tmp_path, 1).records) == ["Functional.exp.0.forward", "Functional.relu.0.forward"]


@mindspore.jit
def compiled(x: Tensor) -> Tensor:
    return x * 2


def test_a_mode_stays_where_a_compiled_function_is_called(tmp_path: Path) -> None:
    x = Tensor([1.0, 2.0])
    net = make_net()
    with tensorprobe.capture(net, tmp_path, level="mix"):
        with Watch() as watch:
            ops.exp(x)
            compiled(x)
            ops.exp(x)
        ops.relu(x)
    ops.relu(x)
    assert watch.seen.count("Exp") == 2 and "ReLU" not in watch.seen
    assert "Functional.relu.0.forward" in only_step(tmp_path).records
