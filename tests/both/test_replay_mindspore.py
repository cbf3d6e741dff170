"""Runs of MindSpore held against their truth, against the truth of their PyTorch twins, and against their own bits."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
import torch
from mindspore import Parameter, Tensor, mint, nn, ops

import tensorprobe
from tensorprobe import mindspore as mindspore_face
from tensorprobe import pytorch as pytorch_face
from tensorprobe.errors import DumpError
from tensorprobe.replay.mindspore_bit import BitCheck, check_bits
from tensorprobe.replay.result import Truth
from tensorprobe.store.reader import open_dump
from tensorprobe.store.tensor_file import open_tensor
from tests.cli.command import run_here

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from fault.case import Setting, build_program
    from fault.framework import framework_of
    from fault.place import Plan
    from fault.record import record_program
    from migration.run import record_mindspore, record_pytorch, train_pytorch

    CORPUS = framework_of("mindspore")
finally:
    sys.path.remove(str(BENCHMARKS))

NETWORKS = ("mlp", "cnn", "lstm", "encoder", "gpt")
MODELS = ("gpt", "cnn", "lstm")
MUST_REPLAY = 0.99


@pytest.fixture(scope="module", autouse=True)
def messages_as_before() -> Iterator[None]:
    """The corpus of faults silences them; tests that come later read them."""
    logger = logging.getLogger("tensorprobe")
    level = logger.level
    yield
    logger.setLevel(level)


class Recorded:
    """Dumps, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.weights: dict[str, Any] = {}

    @cache  # noqa: B019  it lives as long as the tests
    def pair(self, network: str, level: str = "mix") -> tuple[Path, Path]:
        paths = self._folder / f"{network}_{level}_pytorch", self._folder / f"{network}_{level}_mindspore"
        self.weights[network] = record_pytorch(network, level, paths[0], 1)
        record_mindspore(network, level, paths[1], self.weights[network], steps=1)
        return paths

    @cache  # noqa: B019
    def corpus(self, model: str, level: str) -> Path:
        folder = self._folder / f"{model}_{level}"
        mindspore_face.PrecisionDebugger.reset()
        record_program(build_program(model, 0, Plan(CORPUS)), Setting(level, "tensor", framework="mindspore"), folder)
        return folder

    @cache  # noqa: B019
    def truth_of_port(self, network: str) -> Truth:
        return truth_of(self.pair(network)[1])

    @cache  # noqa: B019
    def truth_of_corpus(self, model: str, level: str) -> Truth:
        return truth_of(self.corpus(model, level))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    yield Recorded(tmp_path_factory.mktemp("dumps"))
    pytorch_face.PrecisionDebugger.reset()
    mindspore_face.PrecisionDebugger.reset()


def truth_of(folder: Path) -> Truth:
    (found,) = tensorprobe.truth(folder).runs
    return found


def assert_clean(found: Truth) -> None:
    assert not found.findings
    assert found.coverage.replayed >= MUST_REPLAY * found.coverage.call_count, found.coverage.gaps
    assert not found.not_judged
    assert len(found.losses) == 1


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.some(2)
def test_a_right_port_has_the_truth_of_its_original(network: str, recorded: Recorded) -> None:
    reference, candidate = truth_of(recorded.pair(network)[0]), recorded.truth_of_port(network)
    assert_clean(candidate)
    assert not reference.findings
    assert candidate.losses[0][2] == pytest.approx(reference.losses[0][2], rel=0, abs=1e-12)
    assert candidate.losses[0][2] == pytest.approx(compute_in_float64(network, recorded), rel=0, abs=1e-12)


def compute_in_float64(network: str, recorded: Recorded) -> float:
    """The loss of the PyTorch network itself, in float64: no replay has a part in it."""
    model, compute_loss = train_pytorch.build(network)
    model.load_state_dict(recorded.weights[network])
    inputs, labels = (torch.from_numpy(array) for array in train_pytorch.make_batch(network, 0))
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    with pytorch_face.seed_all(1234, rm_dropout=True):
        return float(compute_loss(model.double().train(), inputs, labels).detach())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.some(2)
def test_the_gradients_of_its_parameters_are_those_of_the_truth(network: str, recorded: Recorded) -> None:
    found = recorded.truth_of_port(network)
    largest = found.largest_gradient
    assert found.parameter_gradients
    assert max(row.share_of(largest) for row in found.parameter_gradients) < 1e-2  # of those that are zero in truth
    assert np.median([row.share_of(largest) for row in found.parameter_gradients]) < 1e-6


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.some(2)
def test_nothing_is_wrong_in_a_clean_run_of_the_corpus(model: str, level: str, recorded: Recorded) -> None:
    assert_clean(recorded.truth_of_corpus(model, level))


def test_the_command_says_it_and_how_much_it_could_check(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run_here(capsys, "truth", recorded.pair("gpt")[1])
    assert said.returncode == 0 and "nothing is wrong. All 75 calls compute what they should." in said.stdout
    assert "75 of 75 calls replayed in float64" in said.stdout


def test_a_batch_norm_that_has_gathered_statistics_hands_them_to_the_next_call(recorded: Recorded) -> None:
    """The corpus' CNN is trained for a step and then evaluated: with the statistics of the truth."""
    found = recorded.truth_of_corpus("cnn", "mix")
    rows = [row for row in found.rows if "bn_train" in row.record and row.slot in ("output.5", "output.6")]
    assert len(rows) == 14 and all(row.own is not None and row.own.is_explained for row in rows)


# -- what is wrong in one run alone ------------------------------------------------------------------------------------


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.change: Callable[[Tensor], Tensor] = lambda x: x

    def construct(self, x: Tensor) -> Tensor:
        return (self.second(self.change(ops.tanh(self.first(x)))) ** 2).mean()


def record_step(folder: Path, model: nn.Cell, *inputs: Tensor, level: str = "mix") -> Path:
    mindspore_face.PrecisionDebugger.reset()
    debugger = mindspore_face.PrecisionDebugger(dump_path=str(folder), level=level, task="tensor")
    debugger.start(model)
    mindspore.value_and_grad(model, None, model.trainable_params())(*inputs)
    debugger.stop()
    debugger.step()
    mindspore_face.PrecisionDebugger.reset()
    return folder


def batch(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_a_hook_that_changes_a_gradient_is_found(tmp_path: Path) -> None:
    def hook(x: Tensor) -> Tensor:
        if x._requires_grad:
            x.register_hook(lambda gradient: gradient * 1.5)
        return x

    model = Net()
    assert not truth_of(record_step(tmp_path / "right", model, batch(3, 4))).findings
    model.change = hook
    findings = truth_of(record_step(tmp_path / "hooked", model, batch(3, 4))).findings
    assert [(one.kind, one.record) for one in findings] == [("sum", "Functional.tanh.0.backward")]


def test_tied_weights_are_one_leaf_and_equal_ones_are_two(tmp_path: Path) -> None:
    class Tied(nn.Cell):
        def __init__(self, is_tied: bool) -> None:
            super().__init__()
            self.first = Parameter(Tensor(np.eye(4, dtype=np.float32)), name="first")
            self.second = self.first if is_tied else Parameter(Tensor(np.eye(4, dtype=np.float32)), name="second")

        def construct(self, x: Tensor) -> Tensor:
            return mint.matmul(mint.matmul(x, self.first), self.second).sum()

    for is_tied in (True, False):
        found = truth_of(record_step(tmp_path / str(is_tied), Tied(is_tied), batch(3, 4)))
        assert not found.findings and len(found.parameter_gradients) == (1 if is_tied else 2)
        assert all(row.accumulated is not None and row.accumulated.relative < 1e-6 for row in found.parameter_gradients)


def test_dropout_keeps_its_mask_also_where_its_input_is_zero(tmp_path: Path) -> None:
    class Dropped(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(8, 32)

        def construct(self, x: Tensor) -> Tensor:
            return (ops.dropout(ops.relu(self.fc(x)), 0.4, True) ** 2).sum()

    found = truth_of(record_step(tmp_path, Dropped().set_train(), batch(6, 8)))
    assert not found.findings and not found.coverage.gaps
    assert all(row.accumulated is not None and row.accumulated.relative < 1e-6 for row in found.parameter_gradients)


def test_two_passes_in_one_step_have_gradients_of_their_own(tmp_path: Path) -> None:
    model = Net()
    mindspore_face.PrecisionDebugger.reset()
    debugger = mindspore_face.PrecisionDebugger(dump_path=str(tmp_path), level="mix", task="tensor")
    debugger.start(model)
    compute = mindspore.value_and_grad(model, None, model.trainable_params())
    compute(batch(3, 4))
    compute(batch(5, 4))
    debugger.stop()
    debugger.step()
    mindspore_face.PrecisionDebugger.reset()
    found = truth_of(tmp_path)
    assert not found.findings and len(found.losses) == 2
    assert all(row.accumulated is not None and row.accumulated.relative < 1e-6 for row in found.parameter_gradients)


def test_what_was_computed_without_gradients_has_none(tmp_path: Path) -> None:
    def detached(x: Tensor) -> Tensor:
        with mindspore._no_grad():
            y = ops.exp(x)
        return x + y

    model = Net()
    model.change = detached
    found = truth_of(record_step(tmp_path, model, batch(3, 4)))
    assert not found.findings
    assert all(row.accumulated is not None and row.accumulated.relative < 1e-6 for row in found.parameter_gradients)


def test_a_run_of_msadapter_is_refused_with_a_reason(tmp_path: Path) -> None:
    folder = record_step(tmp_path, Net(), batch(3, 4))
    path = next(folder.glob("step0/*/dump.json"))
    path.write_text(path.read_text().replace('"framework": "mindspore"', '"framework": "mindtorch"'))
    with pytest.raises(DumpError, match="only dumps of PyTorch and MindSpore can be replayed"):
        tensorprobe.truth(folder)


# -- bit for bit -------------------------------------------------------------------------------------------------------


def bits_of(folder: Path) -> BitCheck:
    return check_bits(next(open_dump(folder).ranks()))


def assert_all_bits(found: BitCheck) -> None:
    assert found, (found.different, found.broken_links, found.different_gradients)
    assert not found.not_run and not found.gradients_not_run
    assert found.same + found.random == found.call_count
    assert found.link_count and found.gradient_count


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.some(2)
def test_mindspore_gives_every_bit_of_a_run_again(network: str, recorded: Recorded) -> None:
    found = bits_of(recorded.pair(network)[1])
    assert_all_bits(found)
    assert found.random == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.some(2)
def test_so_it_does_of_a_run_that_draws(model: str, recorded: Recorded) -> None:
    """What draws is not made again; all that follows from it is."""
    assert_all_bits(bits_of(recorded.corpus(model, "L1")))


def test_one_bit_that_is_another_is_named_where_it_comes_from_and_where_it_goes(tmp_path: Path) -> None:
    folder = record_step(tmp_path, Net(), batch(3, 4))
    rank = next(open_dump(folder).ranks())
    path = rank.tensor_path("Functional.tanh.0.forward.output.0.npy")
    content = np.array(open_tensor(path, "Float32"))
    content.view(np.int32)[0, 0] ^= 1
    path.unlink()
    np.save(path, content)
    found = check_bits(rank)
    assert not found
    assert found.different == ["Functional.tanh.0.forward.output.0"]
    assert [name.rsplit(".", 4)[0] for name in found.broken_links] == ["Primitive.matmul.MatMul"]


@pytest.mark.parametrize("name", ["Functional.print_", "Functional.custom_info_register", "Primitive.first.Custom"])
def test_what_has_no_meaning_is_not_called(name: str, tmp_path: Path) -> None:
    folder = record_step(tmp_path, Net(), batch(3, 4), level="L1")
    path = next(folder.glob("step0/*/dump.json"))
    path.write_text(path.read_text().replace('"Functional.tanh.0.forward": {', f'"{name}.0.forward": {{'))
    found = bits_of(folder)
    assert "is no function of MindSpore that is known here" in found.not_run[f"{name}.0.forward"]
