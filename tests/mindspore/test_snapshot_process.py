"""`save` in programs of their own: what is on disk when they have ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.warm import run_warm

SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from tensorprobe.mindspore import save, save_grad, step

mode, end = sys.argv[1:]
ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(256, 256)

    def construct(self, x):
        for number in range(8):
            x = save_grad("out", f"h{number}", ops.tanh(self.dense(x)))
            save("out", f"h{number}", x)
        return x.sum()

net = Net()
if mode in ("ast", "bytecode"):
    net.construct = ms.jit(net.construct, capture_mode=mode)
train = ms.grad(net, None, net.trainable_params())
x = Tensor(np.ones((64, 256), np.float32))
for _ in range(2):
    train(x)
    if end != "no step":
        step()
train(x)
if end == "exit":
    sys.exit(3)
if end == "error":
    raise ValueError("the user's own")
"""


def run_program(folder: Path, mode: str, end: str, *variables: dict[str, str]) -> list[int]:
    """The exit codes; several variables are several processes at the same time."""
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GLOG_v": "3"}
    environments = [{**environment, **own} for own in variables or ({},)]
    return [ended.returncode for ended in run_warm("mindspore", folder, ["program.py", mode, end], *environments)]


def counts(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): len(list(path.iterdir())) for path in sorted(folder.glob("step*/rank*"))}


@pytest.mark.parametrize(
    ("mode", "end", "code"),
    [
        pytest.param("graph", "quiet", 0, marks=pytest.mark.long),
        ("ast", "exit", 3),
        ("bytecode", "error", 1),
        ("pynative", "quiet", 0),
    ],
)
@pytest.mark.some(3)
def test_nothing_is_lost_when_the_program_ends_right_after_training(
    tmp_path: Path, mode: str, end: str, code: int
) -> None:
    assert run_program(tmp_path, mode, end) == [code]
    assert counts(tmp_path / "out") == {"step0/rank0": 16, "step1/rank0": 16, "step2/rank0": 16}


def test_without_step_everything_is_step_0(tmp_path: Path) -> None:
    assert run_program(tmp_path, "graph", "no step") == [0]
    assert counts(tmp_path / "out") == {"step0/rank0": 48}


def test_two_processes_write_into_their_ranks(tmp_path: Path) -> None:
    ranks = [{"RANK_ID": rank, "RANK_SIZE": "2"} for rank in "01"]
    assert run_program(tmp_path, "graph", "quiet", *ranks) == [0, 0]
    assert counts(tmp_path / "out") == {f"step{n}/rank{r}": 16 for n in range(3) for r in range(2)}
