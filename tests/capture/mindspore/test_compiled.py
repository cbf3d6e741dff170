"""Compiled functions inside a PyNative program: one `Jit` record for each call, and the numbers they give without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.graph import jit_trace

from tensorprobe.capture.mindspore.compiled import _JitExecutor
from tests.capture.mindspore.dump import DumpOnDisk
from tests.capture.mindspore.recording import float_tensor, forward_names, record

MODES = ("ast", "bytecode", "trace")


def compute(x: Tensor, y: Tensor) -> Tensor:
    return ops.relu(x * 2) + mint.exp(y)


def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, y * 3


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.fc(x))


class Model(nn.Cell):
    """A compiled cell between two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Dense(3, 3), JittedBlock(), nn.Dense(3, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


class JittedBlock(Block):
    @mindspore.jit
    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.fc(x))


@pytest.fixture(autouse=True)
def trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore 2.10 does not trace below a frame without source, such as those of `python -m pytest`."""
    monkeypatch.setattr(jit_trace, "_get_caller_lines", lambda: ([__file__], [1]))


@pytest.fixture
def graph_mode() -> Iterator[None]:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def check_same(
    folder: Path, make: Callable[[], Callable[[], Any]], model: Any = None, **options: Any
) -> tuple[DumpOnDisk, Any]:
    """Run what `make` makes, once as it is and once recorded: compiled each time, with the same results."""
    plain = make()()
    results: list[Any] = []
    dump = record(folder, lambda: results.append(make()()), model, **options)
    assert arrays(plain) == arrays(results[0])
    assert dump.coverage["failed"] == 0
    return dump, results[0]


def arrays(tree: Any) -> Any:
    if isinstance(tree, (tuple, list)):
        return [arrays(item) for item in tree]
    return tree.asnumpy().tobytes()


def is_restored() -> bool:
    owners = (nn.Cell.__call__, _JitExecutor.__call__, nn.Cell.compile_and_run, ops.relu)
    return all("tensorprobe" not in function.__code__.co_filename for function in owners)


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_function_is_one_record_with_what_it_is_given_and_returns(mode: str, tmp_path: Path) -> None:
    x, y = float_tensor(2, 3), float_tensor(2, 3) * 2

    def make() -> Callable[[], Tensor]:
        jitted = mindspore.jit(compute, capture_mode=mode)
        return lambda: jitted(x, y)

    dump, result = check_same(tmp_path, make, task="tensor")
    assert forward_names(dump) == ["Jit.compute.0"]
    fields = dump.records["Jit.compute.0.forward"]
    first, second = dump.tensors(fields["input_args"])
    assert np.array_equal(first, x.asnumpy()) and np.array_equal(second, y.asnumpy())
    assert np.array_equal(dump.tensor(fields["output"][0]), result.asnumpy())
    assert dump.coverage["unseen"] == {} and is_restored()


@pytest.mark.parametrize("mode", MODES)
def test_its_backward_is_a_record_too(mode: str, tmp_path: Path) -> None:
    x, y = float_tensor(2, 3), float_tensor(2, 3) * 2

    def make() -> Callable[[], Any]:
        jitted = mindspore.jit(compute, capture_mode=mode)
        return lambda: mindspore.grad(lambda x, y: jitted(x * 1, y * 1).sum(), (0, 1))(x, y)

    dump, gradients = check_same(tmp_path, make, task="tensor")
    fields = dump.records["Jit.compute.0.backward"]
    assert dump.tensor(fields["input"][0]).tolist() == np.ones((2, 3)).tolist()
    for leaf, gradient in zip(fields["output"], gradients, strict=True):
        assert np.array_equal(dump.tensor(leaf), gradient.asnumpy())


@pytest.mark.parametrize("position", [0, 1])
def test_the_gradient_of_an_argument_is_not_taken_for_that_of_another(position: int, tmp_path: Path) -> None:
    """MindSpore hands over the gradients that were asked for, without saying whose they are."""
    jitted = mindspore.jit(compute)
    constant, x = float_tensor(2, 3), float_tensor(2, 3) * 2

    def work() -> None:
        def run(x: Tensor) -> Tensor:
            given = [constant, constant]
            given[position] = x
            return jitted(*given).sum()

        expected.append(mindspore.grad(run)(x).asnumpy())

    expected: list[Any] = []
    dump = record(tmp_path, work, task="tensor")
    outputs = dump.records["Jit.compute.0.backward"]["output"]
    assert outputs[1 - position] is None
    assert np.array_equal(dump.tensor(outputs[position]), expected[0])


def test_several_results_of_a_compiled_function_have_their_gradients(tmp_path: Path) -> None:
    jitted, x = mindspore.jit(pair), float_tensor(2)

    def run(x: Tensor) -> Tensor:
        first, second = jitted(x, x)
        return (first + second * 5).sum()

    dump = record(tmp_path, lambda: mindspore.grad(run)(x), task="tensor")
    fields = dump.records["Jit.pair.0.backward"]
    assert [dump.tensor(leaf).tolist() for leaf in fields["input"]] == [[1.0, 1.0], [5.0, 5.0]]
    assert [dump.tensor(leaf).tolist() for leaf in fields["output"]] == [[2.0, 2.0], [15.0, 15.0]]


def test_calls_are_counted_whether_or_not_they_compile(tmp_path: Path) -> None:
    jitted, x = mindspore.jit(compute), float_tensor(2)
    dump = record(tmp_path, lambda: [jitted(x, x) for _ in range(3)])
    assert forward_names(dump) == ["Jit.compute.0", "Jit.compute.1", "Jit.compute.2"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_cell_with_a_compiled_construct_is_a_jit_record_inside_its_cell(level: str, tmp_path: Path) -> None:
    model, x = Model(), float_tensor(2, 3)
    plain = mindspore.grad(lambda x: model(x).sum(), 0, model.trainable_params())(x)
    results: list[Any] = []

    def work() -> None:
        results.append(mindspore.grad(lambda x: model(x).sum(), 0, model.trainable_params())(x))

    dump = record(tmp_path, work, model, level=level)
    assert arrays(plain) == arrays(results[0]) and dump.coverage["failed"] == 0
    assert {"Jit.JittedBlock.0.forward", "Jit.JittedBlock.0.backward"} <= dump.records.keys()
    assert dump.records["Jit.JittedBlock.0.forward"]["module_path"] == "block"
    if level == "mix":
        assert dump.parents["Jit.JittedBlock.0.forward"] == "Cell.block.JittedBlock.forward.0"
        assert {"Cell.block.JittedBlock.backward.0", "Cell.last.Dense.backward.0"} <= dump.records.keys()


def test_compiling_in_the_window_reads_the_functions_of_mindspore(tmp_path: Path) -> None:
    def make() -> Callable[[], Tensor]:
        jitted = mindspore.jit(compute)
        return lambda: jitted(float_tensor(4), float_tensor(4))

    dump, _ = check_same(tmp_path, make, nn.Dense(2, 2), level="mix")
    assert forward_names(dump) == ["Jit.compute.0"]


@pytest.mark.parametrize("mode", MODES)
def test_calls_before_and_after_a_compiled_one_are_recorded(mode: str, tmp_path: Path) -> None:
    jitted, x = mindspore.jit(compute, capture_mode=mode), float_tensor(2)
    dump = record(tmp_path, lambda: ops.abs(jitted(ops.abs(x), x)))
    assert forward_names(dump) == ["Functional.abs.0", "Jit.compute.0", "Functional.abs.1"]
    assert dump.records["Functional.abs.1.forward"]["input_args"][0]["source"] == "Jit.compute.0.forward"


def outer(x: Tensor) -> Tensor:
    return inner(x) + 1


@mindspore.jit
def inner(x: Tensor) -> Tensor:
    return x * 2


def test_a_compiled_function_inside_another_is_part_of_it(tmp_path: Path) -> None:
    jitted, x = mindspore.jit(outer), float_tensor(2)
    dump = record(tmp_path, lambda: (jitted(x), ops.abs(x)))
    assert forward_names(dump) == ["Jit.outer.0", "Functional.abs.0"]


def refused(x: Tensor) -> Tensor:
    raise ValueError("of the user")


@pytest.mark.parametrize("mode", ["ast", "bytecode"])  # after a traced one that raised, MindSpore 2.10 is of no use
def test_one_that_raises_is_a_failed_record_and_the_next_calls_are_recorded(mode: str, tmp_path: Path) -> None:
    jitted, x = mindspore.jit(refused, capture_mode=mode), float_tensor(2)

    def work() -> None:
        with pytest.raises(ValueError, match="of the user"):
            jitted(x)
        ops.abs(x)

    dump = record(tmp_path, work)
    assert "failed" in dump.records["Jit.refused.0.forward"] and is_restored()
    assert "Functional.abs.0.forward" in dump.records


def test_a_compiled_gradient_is_one_record(tmp_path: Path) -> None:
    jitted, x = mindspore.jit(mindspore.grad(scalar)), float_tensor(2)
    dump = record(tmp_path, lambda: jitted(x))
    assert len(forward_names(dump)) == 1 and forward_names(dump)[0].startswith("Jit.")


def scalar(x: Tensor) -> Tensor:
    return ops.sin(x).sum()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_in_graph_mode_a_model_is_one_record(level: str, graph_mode: None, tmp_path: Path) -> None:
    model, x = Block(), float_tensor(2, 3)
    plain = model(x).asnumpy()
    results: list[Any] = []
    dump = record(tmp_path, lambda: results.append(model(x).asnumpy()), model, level=level)
    assert plain.tobytes() == results[0].tobytes()
    assert "Jit.Block.0.forward" in dump.records and dump.coverage["failed"] == 0
    assert dump.read("run.json")["settings"]["mode"] == "GRAPH_MODE"


def test_in_graph_mode_a_step_of_training_gives_the_same_numbers(graph_mode: None, tmp_path: Path) -> None:
    def train() -> Any:
        mindspore.set_seed(0)
        model = nn.SequentialCell(nn.Dense(3, 3), nn.Tanh())
        loss = nn.WithLossCell(model, nn.MSELoss())
        step = nn.TrainOneStepCell(loss, nn.SGD(model.trainable_params(), 0.1))
        losses = [step(float_tensor(4, 3), float_tensor(4, 3) * 2).asnumpy().tobytes() for _ in range(2)]
        return losses, [weight.asnumpy().tobytes() for weight in model.get_parameters()]

    plain = train()
    results: list[Any] = []
    dump = record(tmp_path, lambda: results.append(train()))
    assert results == [plain] and "Jit.TrainOneStepCell.1.forward" in dump.records


@pytest.mark.parametrize("kind", [nn.SGD, nn.Adam, nn.Momentum])
def test_the_compiled_step_of_an_optimizer_is_tagged(kind: type, tmp_path: Path) -> None:
    weight = Parameter(float_tensor(3), name="w")
    arguments = (0.1, 0.9) if kind is nn.Momentum else (0.1,)
    optimizer = kind([weight], *arguments)
    dump = record(tmp_path, lambda: optimizer((float_tensor(3),)))
    assert {fields.get("caller") for fields in dump.records.values()} == {"optimizer"}


def test_in_graph_mode_the_step_of_an_optimizer_is_tagged_too(graph_mode: None, tmp_path: Path) -> None:
    optimizer = nn.Adam([Parameter(float_tensor(3), name="w")], 0.1)
    dump = record(tmp_path, lambda: optimizer((float_tensor(3),)))
    assert dump.records["Jit.Adam.0.forward"]["caller"] == "optimizer"


def test_api_yaml_leaves_compiled_functions_out(tmp_path: Path) -> None:
    (tmp_path / "apis.yaml").write_text("jit: [nothing]")
    jitted, x = mindspore.jit(compute), float_tensor(2)
    dump = record(tmp_path / "dump", lambda: jitted(x, x), api_yaml=str(tmp_path / "apis.yaml"))
    assert dump.records == {} and dump.coverage["excluded"] == 1


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_with_parameters_that_compiles_in_the_window_has_nothing_of_ours_in_it(
    level: str, tmp_path: Path
) -> None:
    def train(model: nn.Cell) -> Any:
        return mindspore.grad(lambda x: model(x).sum(), 0, model.trainable_params())(float_tensor(2, 3))

    mindspore.set_seed(5)
    plain = train(Model())
    mindspore.set_seed(5)
    model, results = Model(), []
    dump = record(tmp_path, lambda: results.append(train(model)), model, level=level)
    results.append(train(model))
    assert arrays(plain) == arrays(results[0]) == arrays(results[1])
    assert {"Cell.block.fc.Dense.parameters_grad", "Cell.first.Dense.backward.0"} <= dump.records.keys()
    assert dump.coverage["failed"] == 0 and all(weight.hooks() == [] for weight in model.get_parameters())


def test_after_a_failed_operation_compiled_functions_of_the_user_still_compile(tmp_path: Path) -> None:
    model = Block()

    def fail() -> None:
        with pytest.raises((ValueError, RuntimeError)):
            mindspore.grad(lambda x: model(x).sum(), None, model.trainable_params())(float_tensor(2, 5))

    record(tmp_path, fail, model, level="L0")
    jitted = mindspore.jit(model)  # hooks that MindSpore does not remove any more are compiled into it
    assert np.array_equal(jitted(float_tensor(2, 3)).asnumpy(), model(float_tensor(2, 3)).asnumpy())
