"""MindSpore programs that end badly, or record to a bad disk: nothing captured is lost, and the training goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tensorprobe.store.reader import RankDump, open_dump
from tests.cli.command import run_command
from tests.integration.script import messages
from tests.integration.script import run_script as run_any_script

PREAMBLE = """
import os, signal, sys, time
import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from tensorprobe.mindspore import PrecisionDebugger, seed_all

mindspore.runtime.launch_blocking()
mindspore.device_context.cpu.op_tuning.threads_num(1)
x = Tensor(np.random.RandomState(0).randn(16, 32).astype(np.float32))

def make_model():
    with seed_all(1, rm_dropout=False):
        return nn.SequentialCell(nn.Dense(32, 64), nn.ReLU(), nn.Dense(64, 8))
"""

run_script = partial(run_any_script, framework="mindspore")

# Leaves in the middle of a step: after a forward, in the second one, before any backward.
MIDDLE = (
    PREAMBLE
    + """
model = make_model()
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")

def leave(*_):
    debugger.save(x, "last")
    {
        "exception": lambda: 1 / 0,
        "exit": lambda: sys.exit(3),
        "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "sigint": lambda: os.kill(os.getpid(), signal.SIGINT),
    }[sys.argv[1]]()
    time.sleep(30)  # the signal has ended the program before

debugger.start(model)
model(x)
model[2].register_forward_pre_hook(leave)
model(x)
"""
)

CODES = {"exception": 1, "exit": 3, "sigterm": -signal.SIGTERM, "sigint": -signal.SIGINT}
ENDINGS = {
    "exception": "ZeroDivisionError: division by zero",
    "exit": None,  # the program's own decision
    "sigterm": "SIGTERM",
    "sigint": "KeyboardInterrupt",
}


def only_rank(folder: Path) -> RankDump:
    (rank,) = open_dump(folder).ranks()
    return rank


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".tmp"))]


@pytest.mark.parametrize("way", CODES)
def test_a_program_that_ends_in_the_middle_of_a_step_leaves_whole_files_and_how_it_ended(
    way: str, tmp_path: Path
) -> None:
    run_script(tmp_path, MIDDLE, way, code=CODES[way])
    rank = only_rank(tmp_path / "dump")
    assert not parts(tmp_path) and not rank.problems
    assert rank.run.get("ended") == ENDINGS[way] and rank.is_complete == (way == "exit")
    records = {record.name: record for record in rank.records()}
    assert {"Cell.SequentialCell.forward.0", "Cell.0.Dense.forward.1", "Cell.1.ReLU.forward.1"} <= set(records)
    assert [saved.name for saved in rank.saved_values()] == ["last.0.debug"]
    assert set(rank.parents) == set(records)
    files = [slot.data_name for record in records.values() for slot in record.slots() if hasattr(slot, "data_name")]
    assert files and all(rank.tensor_path(name).exists() for name in files)
    if way == "exception":
        assert records["Cell.SequentialCell.forward.1"].fields["failed"] == "ZeroDivisionError: division by zero"


def test_an_error_that_the_program_catches_marks_its_calls_and_loses_nothing_after_it(tmp_path: Path) -> None:
    script = """
class Faulty(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, ops.ones((7, 3)))

model = nn.SequentialCell(nn.ReLU(), Faulty())
debugger = PrecisionDebugger(dump_path="dump", level="mix")
debugger.start(model)
try:
    model(x)
except RuntimeError:
    print("caught")
ops.relu(x)
loss = mindspore.value_and_grad(lambda x: ops.relu(x).sum())(x)
debugger.stop()
"""
    assert "caught" in run_script(tmp_path, PREAMBLE + script).stdout
    rank = only_rank(tmp_path / "dump")
    failed = [record.name for record in rank.records() if "failed" in record.fields]
    assert failed == ["Functional.matmul.0.forward", "Cell.1.Faulty.forward.0", "Cell.SequentialCell.forward.0"]
    assert "Functional.relu.1.backward" in [record.name for record in rank.records()]
    assert rank.is_complete and rank.run["coverage"]["failed"] == 0


def test_after_sigkill_all_that_was_flushed_reads_and_recover_makes_it_whole(tmp_path: Path) -> None:
    script = """
from tensorprobe.capture import sink
sink.FLUSH_SECONDS = 1000  # only the number of records counts here
debugger = PrecisionDebugger(dump_path="dump", level="L1", task="tensor")
debugger.start()
for _ in range(600):
    ops.sin(x)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_script(tmp_path, PREAMBLE + script, code=-signal.SIGKILL)
    rank = only_rank(tmp_path / "dump")
    names = [record.name for record in rank.records()]
    assert names == [f"Functional.sin.{index}.forward" for index in range(512)]
    assert not rank.is_complete and not rank.problems

    assert run_command("recover", tmp_path / "dump").returncode == 0
    recovered = only_rank(tmp_path / "dump")
    assert [record.name for record in recovered.records()] == names and not parts(tmp_path / "dump")


TWICE = (
    PREAMBLE
    + """
def train(debugger=None):
    model = make_model()
    optimizer = nn.Adam(model.trainable_params())
    compute = mindspore.value_and_grad(lambda x: ops.square(model(x)).sum(), None, optimizer.parameters)
    losses = []
    for _ in range(6):
        if debugger:
            debugger.start(model)
        loss, gradients = compute(x)
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
        if debugger:
            debugger.stop()
            debugger.step()
    return losses + [parameter.asnumpy().tobytes() for parameter in model.get_parameters()]

plain = train()
assert train(PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="tensor", min_free=0)) == plain
print("identical")
"""
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_one_message_says_so_and_training_goes_on_bit_for_bit(small_disk: Path, tmp_path: Path) -> None:
    ended = run_script(tmp_path, TWICE, str(small_disk / "dump"))
    complaints = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout.endswith("identical\n") and len(complaints) == 1
    assert "(OSError: [Errno 28] No space left on device); training goes on" in complaints[0]
    dump = open_dump(small_disk / "dump")
    assert not any(rank.problems for rank in dump.ranks() if rank.dump_file)
    assert next(dump.ranks()).is_complete and not list(small_disk.rglob("*.tmp"))
    assert any(rank.run["coverage"]["failed"] for rank in dump.ranks() if rank.run)


def test_a_limit_on_the_size_of_files_is_said_once_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
    ended = run_script(tmp_path, TWICE.replace("plain = train()\n", "plain = train()\n" + limit), "dump")
    complaints = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout.endswith("identical\n") and len(complaints) == 1 and "File too large" in complaints[0]


LATE_ERROR = """
import mindspore, tensorprobe
from mindspore import mint

class Net(mindspore.nn.Cell):
    def construct(self):
        return mint.randn(4)  # has no kernel on this device: known only when somebody waits for it

for level in ("L0", "L1", "mix"):
    model = Net()
    try:
        with tensorprobe.capture(model, f"dump_{level}", level=level):
            model().asnumpy()
        print(level, "no error")
    except RuntimeError as error:
        print(level, str(error).split(chr(10))[0])
"""


def test_an_error_that_mindspore_tells_late_reaches_the_program(tmp_path: Path) -> None:
    """MindSpore tells it once, to whoever looks at the result first."""
    done = run_script(tmp_path, LATE_ERROR)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["L0", "L1", "mix"]
    assert all("no error" not in line for line in lines), done.stdout
    assert '"failed": "RuntimeError' in (tmp_path / "dump_L1" / "step0" / "rank" / "dump.json").read_text()
