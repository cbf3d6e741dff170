"""Level L0 on cells that are compiled: the same records, with the same numbers, as in PyNative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tensorprobe.capture.mindspore.graph_call import make_tree
from tensorprobe.mindspore import PrecisionDebugger
from tests.capture.mindspore.dump import only_step
from tests.mindspore.mode import COMPILED, compiled, running_in
from tests.mindspore.program import dump_of


@pytest.fixture(params=COMPILED)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with running_in(request.param):
        yield request.param


in_one_mode = pytest.mark.parametrize("mode", ["ast", pytest.param("graph", marks=pytest.mark.long)], indirect=True)
"""A whole graph is compiled for minutes in all: what others show of it is shown of one mode in the short form."""


class Pair(nn.Cell):
    """Several inputs, a keyword, and a nesting as its result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(3, 3)

    def construct(self, x: Tensor, factor: float, y: Tensor, *, shift: Tensor) -> Any:
        z = self.inner(x) * factor + y + shift
        return z, {"twice": y * 2, "list": [x + 1, None]}


class Net(nn.Cell):
    """A cell that is used twice, one inside another, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Dense(3, 3)
        self.relu = nn.ReLU()
        self.pair = Pair()
        self.sequence = nn.SequentialCell(nn.Dense(3, 3), nn.LayerNorm((3,)))

    def construct(self, x: Tensor) -> Tensor:
        h = self.relu(self.shared(self.relu(self.shared(x))))
        z, rest = self.pair(h, 2.0, x * 3, shift=h * 0.5)
        return (self.sequence(z) * rest["twice"] + rest["list"][0]).sum()


def make_net() -> Net:
    net = Net()
    generator = np.random.default_rng(0)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    return net


FOLDER = TemporaryDirectory(prefix="graph")
"""For the runs that several tests here look at."""
X = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def bits_of(result: Any) -> list[bytes]:
    loss, (of_input, of_weights) = result
    return [value.asnumpy().tobytes() for value in (loss, of_input, *of_weights)]


def record(mode: str, dump_path: str, steps: int = 1) -> tuple[list[bytes], list[list[bytes]], list[bytes]]:
    """What is computed before, during and after the windows."""
    net = make_net()
    run = ms.value_and_grad(compiled(mode, net), 0, net.trainable_params())
    before = bits_of(run(Tensor(X)))
    Path("config.json").write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": dump_path}))
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger("config.json")
    during = []
    for _ in range(steps):
        debugger.start(net)
        during.append(bits_of(run(Tensor(X))))
        debugger.stop()
        debugger.step()
    assert not [name for name, cell in net.cells_and_names() if name and "construct" in cell.__dict__]
    return before, during, bits_of(run(Tensor(X)))


@cache
def record_once(mode: str) -> tuple[tuple[list[bytes], list[list[bytes]], list[bytes]], Path]:
    """The same for all tests that only look at it, and where it lies: to compile a graph takes seconds."""
    folder = Path(FOLDER.name) / mode
    return record(mode, str(folder), steps=2), folder


def tensors(dump_path: str | Path, step: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    folder = Path(dump_path) / f"step{step}" / "rank" / "dump_tensor_data"
    return {path.name: np.load(path) for path in folder.iterdir()}


def test_nothing_that_the_program_computes_changes(mode: str) -> None:
    (before, during, after), _ = record_once(mode)
    assert during == [before, before] and after == before


def test_every_cell_has_the_values_and_gradients_that_it_has_in_pynative(mode: str) -> None:
    _, folder = record_once(mode)
    with running_in("pynative"):
        record("pynative", "reference")
    reference, found = tensors("reference"), tensors(folder)
    inside = {name for name in reference if not name.startswith("Cell.Net.")}
    assert not inside - set(found)
    for name in inside:
        assert np.allclose(reference[name], found[name], rtol=1e-4, atol=1e-5), name


@in_one_mode
def test_records_nest_and_count_as_in_pynative(mode: str) -> None:
    dump = only_step(record_once(mode)[1], 0)
    records = list(dump.records)
    forward = [name for name in records if "forward" in name]
    assert forward == [
        "Cell.shared.Dense.forward.0",
        "Cell.relu.ReLU.forward.0",
        "Cell.shared.Dense.forward.1",
        "Cell.relu.ReLU.forward.1",
        "Cell.pair.inner.Dense.forward.0",
        "Cell.pair.Pair.forward.0",
        "Cell.sequence.0.Dense.forward.0",
        "Cell.sequence.1.LayerNorm.forward.0",
        "Cell.sequence.SequentialCell.forward.0",
        "Cell.Net.forward.0",
    ]
    assert dump.read("construct.json")["Cell.pair.inner.Dense.forward.0"] == "Cell.pair.Pair.forward.0"
    backward = {name for name in records if "backward" in name}
    assert backward >= {name.replace("forward", "backward") for name in forward[:-1]}


class Trained(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 2)

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.dense(x)).sum()


def test_parameters_are_those_before_a_graph_that_updates_them() -> None:
    with running_in("graph"):
        net = Trained()
        trainer = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5))
        trainer.set_train()
        Path("config.json").write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": "dump"}))
        debugger = PrecisionDebugger("config.json")
        weights = []
        for _ in range(2):
            weights.append(net.dense.weight.asnumpy().copy())
            debugger.start(net)
            trainer(Tensor(X))
            debugger.stop()
            debugger.step()
        assert not np.array_equal(*weights)
        for step, weight in enumerate(weights):
            files = tensors("dump", step)
            assert np.array_equal(files["Cell.dense.Dense.forward.0.parameters.weight.npy"], weight)
            gradient = files["Cell.dense.Dense.parameters_grad.weight.npy"]
            assert np.allclose(files["Cell.dense.Dense.backward.0.input.0.npy"].T @ X, gradient, atol=1e-5)


class Chooser(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(ops.masked_select(x, x > 0)).sum()


def test_a_value_whose_shape_is_computed_is_counted_as_unseen(mode: str) -> None:
    net = Chooser()
    run = compiled(mode, net)
    debugger = PrecisionDebugger(dump_path="dump", level="L0")
    debugger.start(net)
    assert np.isclose(float(run(Tensor(X))), X[X > 0].sum())
    debugger.stop()
    assert "Cell.relu.ReLU.forward.0" in dump_of().records
    unseen = dump_of().read("run.json")["coverage"]["unseen"]
    assert unseen["value inside a compiled graph whose shape is known only when it runs"] == 2


@pytest.mark.parametrize(
    ("entries", "tree"),
    [
        ({}, None),
        ({"0": 1}, [1]),
        ({"1": 1}, [None, 1]),
        ({"0": 1, "1.k": 2, "1.l.0": 3}, [1, {"k": 2, "l": [3]}]),
        ({"name": 1, "other.1": 2}, {"name": 1, "other": [None, 2]}),
    ],
)
def test_paths_become_the_nesting_they_came_from(entries: dict[str, int], tree: Any) -> None:
    assert make_tree(entries) == tree


class Apply(nn.Cell):
    """A function and a cell as arguments, a default, and an early return."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, function: Any, x: Tensor, scale: float = 2.0) -> Tensor:
        if scale == 0:
            return x
        return function(self.dense(x)) * scale


class Awkward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.apply_to = Apply()
        self.table = ms.Parameter(Tensor(np.ones((3, 3), np.float32)), name="table")
        self.embedding = Lookup()

    def construct(self, x: Tensor) -> Tensor:
        y = self.apply_to(ops.relu, x)
        return (y @ self.embedding(self.table)).sum()


class Lookup(nn.Cell):
    """A parameter as an argument."""

    def construct(self, table: Tensor) -> Tensor:
        return table * 2


@in_one_mode
def test_awkward_arguments_do_not_stop_the_program(mode: str) -> None:
    net = Awkward()
    run = ms.value_and_grad(compiled(mode, net), 0, net.trainable_params())
    debugger = PrecisionDebugger(dump_path="dump", level="L0")
    debugger.start(net)
    during = bits_of(run(Tensor(X)))
    debugger.stop()
    assert during == bits_of(run(Tensor(X)))
    assert {"Cell.apply_to.Apply.forward.0", "Cell.embedding.Lookup.forward.0"} <= set(dump_of().records)


class Half(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.double = Lookup()

    def construct(self, x: Tensor) -> Tensor:
        return (self.double(x.astype(ms.bfloat16)).astype(ms.float32) * 2).sum()


@in_one_mode
def test_bfloat16_inside_a_graph(mode: str) -> None:
    net = Half()
    run = ms.grad(compiled(mode, net))
    Path("config.json").write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": "dump"}))
    debugger = PrecisionDebugger("config.json")
    debugger.start(net)
    run(Tensor(X))
    debugger.stop()
    files = tensors("dump")
    bits = Tensor(X).astype(ms.bfloat16).asnumpy()
    assert files["Cell.double.Lookup.forward.0.input.0.npy"].tobytes() == bits.tobytes()
    assert dump_of().records["Cell.double.Lookup.backward.0"]["input"][0]["dtype"] == "BFloat16"


@in_one_mode
def test_at_level_mix_the_compiled_function_is_a_record_too(mode: str) -> None:
    net = make_net()
    run = ms.value_and_grad(compiled(mode, net), 0, net.trainable_params())
    debugger = PrecisionDebugger(dump_path="dump", level="mix")
    debugger.start(net)
    run(Tensor(X))
    debugger.stop()
    names = list(dump_of().records)
    assert [name for name in names if name.startswith("Jit.")]
    assert "Cell.shared.Dense.forward.1" in names and "Cell.shared.Dense.backward.1" in names


class Mistaken(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.dense(x) @ ops.zeros((5, 5))


@in_one_mode
def test_an_error_of_the_users_own_is_theirs_alone(mode: str) -> None:
    net = Mistaken()
    run = compiled(mode, net)
    debugger = PrecisionDebugger(dump_path="dump", level="L0")
    debugger.start(net)
    with pytest.raises(RuntimeError, match="shape1") as caught:
        run(Tensor(X))
    debugger.stop()
    assert caught.value.__context__ is None and "graph.py" not in str(caught.value)
    assert not [name for name, cell in net.cells_and_names() if name and "construct" in cell.__dict__]


class Branching(nn.Cell):
    """One of two cells, by what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
        self.second = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        y = x * 2
        if y.sum() > 0:  # noqa: SIM108  a branch of the graph
            z = self.first(y)
        else:
            z = self.second(y)
        return z.sum()


@in_one_mode
def test_the_cells_of_the_branch_that_is_taken_are_recorded(mode: str) -> None:
    net = Branching()
    train = ms.value_and_grad(compiled(mode, net), 0, net.trainable_params())
    x = Tensor(np.ones((2, 3), np.float32))
    loss, gradients = train(x)
    debugger = PrecisionDebugger(dump_path="dump", level="L0")
    debugger.start(net)
    captured_loss, captured = train(x)
    debugger.stop()
    debugger.step()
    assert loss.asnumpy() == captured_loss.asnumpy()
    assert all(
        np.array_equal(one.asnumpy(), other.asnumpy()) for one, other in zip(gradients[1], captured[1], strict=True)
    )
    records = json.loads(Path("dump/step0/rank/dump.json").read_text())["data"]
    assert "Cell.first.0.Dense.forward.0" in records
    assert "Cell.second.Dense.forward.0" not in records
    if mode == "graph":  # under `ms.jit` the gradients inside a branch are not handed over
        assert "Cell.first.0.Dense.backward.0" in records
