"""`tensorprobe run`, and the variables: programs of PyTorch that do not know of it, as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tensorprobe.store.reader import open_dump
from tests.integration.launched import (
    make_environment,
    names_of,
    run_plain,
    run_program,
    run_recorded,
    run_watched,
)
from tests.integration.script import messages
from tests.integration.torchrun import start_ranks
from tests.length import PATIENCE_SECONDS, wait_until

PREAMBLE = """
import os, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
criterion = nn.CrossEntropyLoss()
target = torch.tensor([0, 1, 0])
"""

TRAINING = (
    PREAMBLE
    + """
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = criterion(model(torch.randn(3, 4)), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
print(torch.rand(1).item().hex(), [p.sum().item().hex() for p in model.parameters()])
print(sys.argv, sys.path[0] == os.path.dirname(os.path.abspath(__file__)), __name__, __file__, __spec__ is None)
"""
)

STEPS = ["step0/rank", "step1/rank", "step2/rank"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"))


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def test_a_script_is_recorded_step_by_step_and_prints_bit_for_bit_what_it_prints_alone(
    python: Path, tmp_path: Path
) -> None:
    script = write(tmp_path, TRAINING)
    plain = run_plain(tmp_path, script, "--level", "mine")
    recorded = run_recorded(python, tmp_path, "-o", "dump", script, "--level", "mine")
    assert recorded.stdout == plain.stdout and plain.stderr == ""
    dump = tmp_path / "dump"
    assert recorded.stderr == f"[tensorprobe] recorded steps 0 to 2 in {dump}. Next: tensorprobe show {dump}\n"
    names = names_of(dump)
    assert list(names) == STEPS
    for recorded_names in names.values():
        assert recorded_names[0] == "Functional.linear.0.forward"  # nothing before the first call of the model
        assert "Module.CrossEntropyLoss.CrossEntropyLoss.forward.0" in recorded_names
        assert {"Module.Sequential.backward.0", "Module.2.Linear.parameters_grad"} <= set(recorded_names)
    assert all(rank.is_complete for rank in open_dump(dump).ranks())


def test_a_module_is_run_as_python_runs_it(python: Path, tmp_path: Path) -> None:
    path = tmp_path / write(tmp_path, TRAINING)
    *plain, _ = run_plain(tmp_path, path.name).stdout.splitlines()
    recorded = run_recorded(python, tmp_path, "--step", "1,3", "-m", "train", "-o", "x")
    said = f"{[str(path), '-o', 'x']} True __main__ {path} False"  # there is a __spec__
    assert recorded.stdout.splitlines() == [*plain, said]
    assert list(names_of(tmp_path / "dump_path")) == ["step1/rank", "step3/rank"]
    assert "recorded 2 steps from 1 to 3" in recorded.stderr


def test_the_variables_record_a_program_that_somebody_else_starts(python: Path, tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING)
    plain = run_plain(tmp_path, script)
    recorded = run_program(python, tmp_path, script, TENSORPROBE_LEVEL="L0", TENSORPROBE_OUTPUT="seen")
    assert recorded.stdout == plain.stdout and list(names_of(tmp_path / "seen")) == STEPS
    assert not any(name.startswith("Functional") for name in names_of(tmp_path / "seen")["step0/rank"])
    (tmp_path / "config.json").write_text('{"dump_path": "configured", "level": "L1", "step": [4]}')
    run_watched(tmp_path, script, config_path="config.json")
    assert list(names_of(tmp_path / "configured")) == ["step4/rank"]


def test_without_the_variables_the_start_of_python_imports_nothing(python: Path, tmp_path: Path) -> None:
    program = "import sys; print([name for name in sys.modules if 'tensorprobe' in name], len(sys.meta_path))"
    plain = run_program(python, tmp_path, "-c", program).stdout
    assert plain.startswith("[]")
    program = "import sys; print('numpy' in sys.modules, 'tensorprobe' in sys.modules)"
    assert run_program(python, tmp_path, "-c", program, TENSORPROBE_LEVEL="L1").stdout == "False False\n"


def test_commands_of_tensorprobe_itself_are_not_recorded(python: Path, tmp_path: Path) -> None:
    program = "import tensorprobe.cli.main, torch; torch.nn.Linear(1, 1)(torch.ones(1))"
    ended = run_program(python, tmp_path, "-c", program, TENSORPROBE_OUTPUT="dump")
    assert ended.stderr == "" and not (tmp_path / "dump").exists()


def test_a_mistake_in_the_variables_is_said_and_the_program_runs(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING)
    ended = run_watched(tmp_path, script, level="L3")
    *plain, _ = run_plain(tmp_path, script).stdout.splitlines()
    assert ended.stdout.splitlines()[:-1] == plain  # the last line tells of the script's path
    assert messages(ended) == [
        "this program is not recorded: level 'L3' is not one of L0, L1, mix, debug (argument \"level\")"
    ]


@pytest.mark.long  # so does the next test, in a process that has imported torch
def test_the_exit_code_is_that_of_the_program(python: Path, tmp_path: Path) -> None:
    script = write(tmp_path, PREAMBLE + "model(torch.randn(3, 4))\nsys.exit(7)\n")
    run_recorded(python, tmp_path, "-o", "dump", script, code=7)
    assert "Module.Sequential.forward.0" in names_of(tmp_path / "dump")["step0/rank"]


@pytest.mark.parametrize(("ending", "code"), [("1 / 0", 1), ("os.abort()", -signal.SIGABRT)])
def test_the_exit_code_is_that_of_the_program_also_where_it_fails(tmp_path: Path, ending: str, code: int) -> None:
    script = write(tmp_path, PREAMBLE + f"model(torch.randn(3, 4))\n{ending}\n")
    run_watched(tmp_path, script, output="dump", code=code)
    names = names_of(tmp_path / "dump") if code == 1 else {}
    assert all("Module.Sequential.forward.0" in found for found in names.values())


def test_ctrl_c_ends_the_program_as_it_would_alone_and_leaves_a_readable_dump(python: Path, tmp_path: Path) -> None:
    script = write(tmp_path, PREAMBLE + "model(torch.randn(3, 4))\nopen('ready', 'w').close()\ntime.sleep(900)\n")
    command = [str(python), "-m", "tensorprobe", "run", "-o", "dump", script]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    (rank,) = open_dump(tmp_path / "dump").ranks()
    assert rank.run["ended"] == "KeyboardInterrupt" and not rank.problems
    assert "Module.Sequential.forward.0" in [record.name for record in rank.records()]


DISTRIBUTED = (
    PREAMBLE
    + """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    loss = criterion(model(torch.randn(3, 4)), target)
    loss.backward()
    optimizer.step()
    if torch.distributed.get_rank() == 0:
        print(loss.item().hex())
torch.distributed.destroy_process_group()
"""
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
RANKS = ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]


@pytest.mark.parametrize("is_outer", [True, pytest.param(False, marks=pytest.mark.long)], ids=["outer", "inner"])
def test_both_ranks_of_torchrun_are_recorded_whichever_of_the_two_starts_the_other(
    python: Path, tmp_path: Path, is_outer: bool
) -> None:
    script = write(tmp_path, DISTRIBUTED)
    plain = "".join(rank.stdout for rank in start_ranks(2, tmp_path / script))
    if is_outer:
        recorded = run_recorded(python, tmp_path, "-o", "dump", *TORCHRUN, script)
    else:
        recorded = run_program(python, tmp_path, *TORCHRUN, "-m", "tensorprobe", "run", "-o", "dump", script)
    assert recorded.stdout == plain
    assert sorted(names_of(tmp_path / "dump")) == RANKS
    assert len(messages(recorded)) == 1  # one rank says it
    assert "Module.0.Linear.parameters_grad" in names_of(tmp_path / "dump")["step1/rank1"]


OWN = (
    PREAMBLE
    + """
from tensorprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path="own")
debugger.start()
model(torch.randn(3, 4))
debugger.stop()
"""
)


def test_a_program_that_uses_tensorprobe_itself_is_left_to_it(tmp_path: Path) -> None:
    ended = run_watched(tmp_path, write(tmp_path, OWN), output="dump")
    assert messages(ended)[0] == (
        "this program uses tensorprobe itself, and is left to it: the options of tensorprobe run, and the variables "
        "TENSORPROBE…, have no effect"
    )
    assert list(names_of(tmp_path / "own")) == STEPS[:1] and not (tmp_path / "dump").exists()


def test_a_program_without_a_framework_is_told_that_nothing_was_recorded(python: Path, tmp_path: Path) -> None:
    ended = run_recorded(python, tmp_path, "-o", "dump", write(tmp_path, "print('hello')\nsys = 1\n"))
    why = "nothing was recorded: the program has imported neither torch nor mindspore"
    assert messages(ended) == [why] and not (tmp_path / "dump").exists()


TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16)
model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=8))
data = [{"input_ids": torch.arange(4) + i, "labels": torch.tensor(i % 2)} for i in range(8)]
options = dict(per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=3, report_to=[], use_cpu=True)
Trainer(model, TrainingArguments("out", save_strategy="no", disable_tqdm=True, **options), train_dataset=data).train()
print([parameter.sum().item().hex() for parameter in model.parameters()])
"""


def test_the_trainer_of_transformers_with_accumulation_makes_one_step_for_each_update(
    python: Path, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it")
    script = write(tmp_path, TRAINER)
    plain = run_plain(tmp_path, script).stdout.splitlines()
    recorded = run_recorded(python, tmp_path, "--level", "L0", "-o", "dump", script).stdout.splitlines()
    assert recorded[-1] == plain[-1]
    names = names_of(tmp_path / "dump")
    assert list(names) == STEPS
    for found in names.values():
        assert "Module.BertForSequenceClassification.backward.1" in found


@pytest.mark.long
def test_without_the_start_file_a_program_and_its_children_are_recorded_and_find_their_path_as_it_was(
    python: Path, tmp_path: Path
) -> None:
    bare = make_environment(tmp_path / "environment")
    next((tmp_path / "environment").glob("lib/python*/site-packages/tensorprobe.pth")).unlink()
    child = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'train.py']))\n"
    write(tmp_path, TRAINING + "print(sys.path)\n")
    write(tmp_path, child, "parent.py")
    plain = run_program(bare, tmp_path, "parent.py").stdout
    recorded = run_recorded(bare, tmp_path, "-o", "dump", "parent.py")
    assert recorded.stdout == plain and list(names_of(tmp_path / "dump")) == STEPS
    assert len(messages(recorded)) == 1  # the parent, which recorded nothing itself, does not complain
    assert os.environ.get("TENSORPROBE_ROOT") is None


SPAWNING = """
import multiprocessing
import sys
import torch
from torch import nn


def work(seed):
    torch.manual_seed(seed)
    print(nn.Linear(4, 2)(torch.ones(3, 4)).sum().item().hex(), flush=True)


if __name__ == "__main__":
    if "first" in sys.argv:
        work(0)
    for seed in (1,):
        child = multiprocessing.get_context("spawn").Process(target=work, args=(seed,))
        child.start()
        child.join()
"""


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program prints unrecorded: its own line, and that of the process that it spawns."""
    folder = tmp_path_factory.mktemp("spawned")
    return run_plain(folder, write(folder, SPAWNING), "first").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [pytest.param(["first"], "step 0", marks=pytest.mark.long), ([], "processes that the program started,")],
    ids=["both", "children"],
)
def test_of_a_program_and_the_processes_that_it_spawns_one_line_is_said(
    arguments: list[str], what: str, spawned: list[str], python: Path, tmp_path: Path
) -> None:
    recorded = run_recorded(python, tmp_path, write(tmp_path, SPAWNING), *arguments)
    assert len(spawned) == 2 and recorded.stdout.splitlines() == (spawned if arguments else spawned[1:])
    ends = [text for text in messages(recorded) if "Next: tensorprobe show" in text]
    output = tmp_path / "dump_path"
    assert ends == [f"recorded {what} in {output}. Next: tensorprobe show {output}"]
