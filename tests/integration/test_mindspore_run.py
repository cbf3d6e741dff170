"""`tensorprobe run`: programs of MindSpore that do not know of it, as processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.launched import make_environment, names_of, run_plain, run_program, run_watched
from tests.integration.msrun import find_port

PROGRAM = """
import sys
import mindspore
import numpy as np
from mindspore import Tensor, nn

mindspore.set_context(mode=mindspore.GRAPH_MODE if "graph" in sys.argv else mindspore.PYNATIVE_MODE)
mindspore.runtime.launch_blocking()
mindspore.device_context.cpu.op_tuning.threads_num(1)
if "ranks" in sys.argv:
    from mindspore.communication import init
    init()
mindspore.set_seed(1)
network, criterion = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2)), nn.MSELoss()
weights = network.trainable_params()
x, y = Tensor(np.random.RandomState(0).randn(3, 4).astype(np.float32)), Tensor(np.zeros((3, 2), np.float32))
compute = mindspore.value_and_grad(lambda x: criterion(network(x), y), None, weights)
if "hand" not in sys.argv:
    optimizer = nn.Adam(weights, 0.01)
    train = nn.TrainOneStepCell(nn.WithLossCell(network, criterion), optimizer)
for step in range(4):
    if "cell" in sys.argv:
        loss = train(x, y)
    else:
        loss, gradients = compute(x)
        if "hand" in sys.argv:
            for weight, gradient in zip(weights, gradients):
                weight.set_data(weight - 0.01 * gradient)
        else:
            optimizer(gradients)
    print(step, float(loss.asnumpy()).hex())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize(
    ("arguments", "layer"),
    [
        ((), "Cell.0.Dense"),
        (("hand",), "Cell.0.Dense"),
        (("cell",), "Cell.network._backbone.0.Dense"),
        pytest.param(("cell", "graph"), "Cell.network._backbone.0.Dense", marks=pytest.mark.long),
    ],
    ids=["optimizer", "by hand", "training cell", "graph"],
)
def test_the_steps_of_a_program_are_recorded_and_its_loss_is_the_same(
    tmp_path: Path, arguments: tuple[str, ...], layer: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = run_plain(tmp_path, "train.py", *arguments, framework="mindspore").stdout
    recorded = run_watched(tmp_path, "train.py", *arguments, framework="mindspore", output="dump", step="0,2")
    assert recorded.stdout == plain
    names = names_of(tmp_path / "dump")
    assert list(names) == ["step0/rank", "step2/rank"]
    for found in names.values():
        assert {f"{layer}.forward.0", f"{layer}.backward.0"} <= set(found)
        assert f"{layer}.forward.1" not in found
        assert any(name.endswith(".parameters_grad") for name in found)


@pytest.mark.long
def test_both_ranks_of_msrun_are_recorded_one_of_them_says_it_and_their_losses_are_the_same(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ["--worker_num=2", "--local_worker_num=2", "--join=True"]

    def run(log: str, *command: str) -> list[str]:
        launcher = ["msrun", *options, f"--master_port={find_port()}", f"--log_dir={log}"]
        run_program(python, tmp_path, *command, *launcher, "train.py", "ranks")
        return [(tmp_path / log / f"worker_{rank}.log").read_text() for rank in range(2)]

    plain = run("plain", "-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])")
    recorded = run("recorded", "-m", "tensorprobe", "run", "-o", "dump", "--step", "1")
    assert [find_losses(text) for text in recorded] == [find_losses(text) for text in plain]
    assert all(len(find_losses(text)) == 4 for text in plain)
    assert "".join(recorded).count("[tensorprobe] recorded step 1 in") == 1
    names = names_of(tmp_path / "dump")
    assert sorted(names) == ["step1/rank0", "step1/rank1"]
    assert all("Cell.0.Dense.backward.0" in found for found in names.values())


def find_losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line[:1].isdigit() and "0x" in line]
