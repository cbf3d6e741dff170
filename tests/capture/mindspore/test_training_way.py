"""The ways to train with MindSpore: each gives its records, forward and backward, and the numbers it gives without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, amp, mint, nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

from tests.capture.mindspore.dump import DumpOnDisk
from tests.capture.mindspore.recording import float_tensor, record

CELLS = {"Cell.hidden.Dense.backward.0", "Cell.head.Dense.backward.0", "Cell.head.Dense.parameters_grad"}
CELLS |= {"Cell.hidden.Dense.parameters_grad", "Cell.Net.forward.0", "Cell.Net.backward.0"}


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Dense(4, 3), nn.Dense(3, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.tanh(self.hidden(x)))


class NetWithLoss(nn.Cell):
    """What MindSpore's wrappers of training take: data and labels in, a loss out."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net, self.loss = net, nn.MSELoss()

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


def make_net() -> Net:
    mindspore.set_seed(1)
    return Net()


def data() -> tuple[Tensor, Tensor]:
    return float_tensor(5, 4), float_tensor(5, 2)


def arrays_in(tree: Any) -> list[bytes]:
    if isinstance(tree, Tensor):
        return [tree.asnumpy().tobytes()]
    return [array for item in tree for array in arrays_in(item)] if isinstance(tree, (tuple, list)) else []


def check_way(folder: Path, run: Callable[[Net], Any], level: str = "mix", **options: Any) -> DumpOnDisk:
    """Run once as it is and once recorded, each with a net of its own; both leave the same behind."""
    plain, recorded = make_net(), make_net()
    expected = arrays_in(run(plain)), [weight.asnumpy().tobytes() for weight in plain.get_parameters()]
    results: list[Any] = []
    dump = record(folder, lambda: results.append(run(recorded)), recorded, level=level, **options)
    assert (arrays_in(results[0]), [weight.asnumpy().tobytes() for weight in recorded.get_parameters()]) == expected
    assert dump.coverage["failed"] == 0
    return dump


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    "differentiate",
    [
        lambda net, x: mindspore.grad(lambda x: net(x).sum())(x),
        lambda net, x: mindspore.grad(net)(x),
        lambda net, x: mindspore.grad(net, 0, net.trainable_params())(x),
        lambda net, x: mindspore.value_and_grad(net, 0, net.trainable_params())(x),
        lambda net, x: mindspore.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(x),
        lambda net, x: mindspore.value_and_grad(lambda x: (net(x).sum(), x), 0, has_aux=True)(x),
        lambda net, x: mindspore.grad(lambda x, y: (net(x) * y).sum(), (0, 1))(x, float_tensor(5, 2)),
        lambda net, x: ops.GradOperation(get_all=True)(net)(x),
        lambda net, x: ops.GradOperation(get_by_list=True)(net, mindspore.ParameterTuple(net.trainable_params()))(x),
        lambda net, x: ops.GradOperation(sens_param=True)(net)(x, float_tensor(5, 2)),
    ],
)
def test_every_way_to_differentiate(differentiate: Callable[[Net, Tensor], Any], level: str, tmp_path: Path) -> None:
    dump = check_way(tmp_path, lambda net: differentiate(net, float_tensor(5, 4)), level)
    assert {name for name in CELLS if "parameters_grad" not in name} <= dump.records.keys()


def test_gradients_of_cells_that_are_differentiated_themselves_are_those_of_the_function(tmp_path: Path) -> None:
    x = float_tensor(5, 4)
    ways = {
        "cell": lambda net: mindspore.grad(net, 0, net.trainable_params())(x),
        "function": lambda net: mindspore.grad(lambda x: net(x), 0, net.trainable_params())(x),
    }
    dumps = [check_way(tmp_path / name, way, task="tensor") for name, way in ways.items()]
    first, second = (
        {name: arrays_of(dump, fields) for name, fields in dump.records.items() if "forward" not in name}
        for dump in dumps
    )
    assert first == second and CELLS - {"Cell.Net.forward.0"} <= first.keys()


def arrays_of(dump: DumpOnDisk, tree: Any) -> list[bytes]:
    """Everything that a record has stored."""
    if isinstance(tree, dict) and "data_name" in tree:
        return [dump.tensor(tree).tobytes()]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for item in items for array in arrays_of(dump, item)]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_train_one_step_cell(level: str, tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        step = nn.TrainOneStepCell(NetWithLoss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        step.set_train()
        return [step(*data()) for _ in range(2)]

    dump = check_way(tmp_path, run, level)
    if level != "L1":
        assert CELLS | {"Cell.Net.backward.1"} <= dump.records.keys()
    else:
        assert {"Primitive.matmul.MatMul.3.backward", "Functional.tanh.1.backward"} <= dump.records.keys()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_forward_value_and_grad(level: str, tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        step = nn.ForwardValueAndGrad(NetWithLoss(net), weights=net.trainable_params(), get_by_list=True)
        return step(*data())

    assert check_way(tmp_path, run, level).records.keys() >= CELLS


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_model_train(level: str, tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        x, y = (tensor.asnumpy() for tensor in data())
        dataset = NumpySlicesDataset((x, y), ["data", "label"], shuffle=False).batch(5)
        model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
        model.train(2, dataset, dataset_sink_mode=False)

    assert CELLS | {"Cell.Net.backward.1"} <= check_way(tmp_path, run, level).records.keys()


def test_a_callback_of_model_train_may_start_and_step(tmp_path: Path) -> None:
    from tests.capture.mindspore.dump import only_step
    from tests.capture.mindspore.training import open_session

    net = make_net()
    session = open_session(tmp_path, level="L0")

    class Debug(Callback):  # type: ignore[misc]
        def on_train_step_begin(self, run_context: Any) -> None:
            session.start(net)

        def on_train_step_end(self, run_context: Any) -> None:
            session.stop()
            session.step()

    x, y = (tensor.asnumpy() for tensor in data())
    dataset = NumpySlicesDataset((x, y), ["data", "label"], shuffle=False).batch(5)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    model.train(3, dataset, callbacks=[Debug()], dataset_sink_mode=False)
    session.close()
    assert [only_step(tmp_path, step).records.keys() >= CELLS for step in range(3)] == [True] * 3


OPTIMIZERS = [
    nn.SGD,
    nn.Adam,
    nn.AdamWeightDecay,
    nn.RMSProp,
    mindspore.experimental.optim.Adam,
    mindspore.experimental.optim.SGD,
]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: f"{kind.__module__.split('.')[1]}.{kind.__name__}")
@pytest.mark.some(2)
def test_the_calls_of_an_optimizer_are_tagged_and_its_update_is_the_same(kind: type, tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        optimizer = kind(net.trainable_params(), 0.1)
        compute = mindspore.value_and_grad(NetWithLoss(net), None, net.trainable_params())
        losses = []
        for _ in range(2):
            loss, gradients = compute(*data())
            optimizer(gradients)
            losses.append(loss)
        return losses

    dump = check_way(tmp_path, run)
    callers = {fields.get("caller") for name, fields in dump.records.items() if not name.startswith("Cell.")}
    assert callers <= {None, "optimizer"}
    last_backward = max(number for number, name in enumerate(dump.records) if name.endswith(".backward.1"))
    after = [name for name in list(dump.records)[last_backward:] if name.endswith("forward")]
    assert after and all(dump.records[name].get("caller") == "optimizer" for name in after)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.some(2)
def test_automatic_mixed_precision(level: str, tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        mixed = amp.auto_mixed_precision(net, amp_level=level)
        scaler = amp.StaticLossScaler(1024)

        def compute(x: Tensor) -> Tensor:
            return scaler.scale(mixed(x).astype(mindspore.float32).sum())

        value, gradients = mindspore.value_and_grad(compute, None, net.trainable_params())(float_tensor(5, 4))
        return scaler.unscale(value), [scaler.unscale(gradient) for gradient in gradients]

    dump = check_way(tmp_path, run)
    assert any(name.endswith("parameters_grad") for name in dump.records)


def test_cells_that_mixed_precision_wraps_are_calls_of_the_program(tmp_path: Path) -> None:
    class Normalized(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.norm = nn.Dense(4, 3), nn.BatchNorm1d(3)

        def construct(self, x: Tensor) -> Tensor:
            return self.norm(self.hidden(x))

    mixed = amp.auto_mixed_precision(Normalized(), amp_level="O2")
    dump = record(tmp_path, lambda: mixed(float_tensor(5, 4)), mixed, level="mix")
    norms = [name for name in dump.records if "BatchNorm1d" in name]
    assert norms and not any("caller" in dump.records[name] for name in norms)
    casts = [fields["caller"] for name, fields in dump.records.items() if "Cast" in name and "caller" in fields]
    assert set(casts) == {"amp"}


def test_gradient_accumulation_and_clipping(tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        compute = mindspore.value_and_grad(NetWithLoss(net), None, net.trainable_params())
        totals = [ops.zeros_like(weight) for weight in net.trainable_params()]
        for _ in range(3):
            _, gradients = compute(*data())
            totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
        return ops.clip_by_global_norm(tuple(totals), 0.5)

    dump = check_way(tmp_path, run)
    assert {f"Cell.Net.backward.{number}" for number in range(3)} <= dump.records.keys()


def test_second_derivatives_are_the_same_while_the_first_are_recorded(tmp_path: Path) -> None:
    def run(net: Net) -> Any:
        def penalty(x: Tensor) -> Tensor:
            return mindspore.grad(lambda x: net(x).sum())(x).square().sum()

        return mindspore.grad(penalty)(float_tensor(5, 4))

    assert "Cell.Net.forward.0" in check_way(tmp_path, run).records


class Recomputing(Net):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.SequentialCell(nn.Dense(4, 3), nn.Tanh())
        self.hidden.recompute()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_recomputation_gives_the_same_numbers_and_is_counted(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(net: Net) -> Any:
        return mindspore.value_and_grad(NetWithLoss(net), None, net.trainable_params())(*data())

    monkeypatch.setitem(globals(), "Net", Recomputing)
    dump = check_way(tmp_path, run, level)
    assert dump.coverage["unseen"]["call inside backward"] >= 1
    if level != "L1":
        assert {"Cell.hidden.SequentialCell.forward.0", "Cell.hidden.SequentialCell.backward.0"} <= dump.records.keys()
        assert not [name for name in dump.records if "_recompute" in name]


def test_layers_of_mint(tmp_path: Path) -> None:
    class MintNet(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = mint.nn.Linear(4, 2), mint.nn.ReLU()

        def construct(self, x: Tensor) -> Tensor:
            return self.act(self.fc(x))

    net = MintNet()
    run = mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())
    plain = [gradient.asnumpy() for gradient in run(float_tensor(3, 4))]
    results: list[Any] = []
    dump = record(tmp_path, lambda: results.extend(run(float_tensor(3, 4))), net, level="mix")
    assert all(np.array_equal(a, b.asnumpy()) for a, b in zip(plain, results, strict=True))
    assert {"Cell.fc.Linear.backward.0", "Cell.act.ReLU.backward.0", "Cell.fc.Linear.parameters_grad"} <= (
        dump.records.keys()
    )
    assert [name for name, parent in dump.parents.items() if parent == "Cell.fc.Linear.forward.0"] != []
