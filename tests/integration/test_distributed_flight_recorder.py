"""The flight recorder on several ranks: each has a ring of its own, and folders that they share are left in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.torchrun import run_ranks

SCRIPT = """
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tensorprobe.pytorch import PrecisionDebugger


def train(debugger, rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for step in range(9):
        if debugger is not None:
            debugger.start(model)
        x = torch.full((3, 4), float(rank + 1 + step))
        if rank == 1 and step == 5:
            x = x * float("nan")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        if step != 5:
            optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()]


dist.init_process_group("gloo")
folder, rank = Path(sys.argv[1]), dist.get_rank()
told = []
options = {"steps": 2, "on": ["nonfinite"], "callback": told.append}
recorded = train(PrecisionDebugger(dump_path=folder / "dump", level="mix", flight_recorder=options), rank)
is_same = repr(recorded) == repr(train(None, rank))  # a NaN does not equal itself
said = {"is_same": is_same, "told": [(one.step, one.steps, one.reason) for one in told]}
(folder / f"rank{rank}.json").write_text(json.dumps(said))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flight")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    run_ranks(2, script, str(folder))
    return folder


def read_rank(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"rank{rank}.json").read_text())


def test_a_nan_of_one_rank_keeps_the_steps_of_all_because_its_gradient_reaches_them(folder: Path) -> None:
    found = {path.name: sorted(rank.name for rank in path.iterdir()) for path in (folder / "dump").iterdir()}
    assert found == {f"step{number}": ["rank0", "rank1"] for number in (4, 5, 7, 8)}
    first, second = (read_rank(folder, rank)["told"] for rank in (0, 1))
    assert [one[:2] for one in first] == [one[:2] for one in second] == [[5, [4, 5]]]
    assert first[0][2] == (
        "NaN is in Module.Linear.parameters_grad (weight.0: 8, bias.0: 2); no call recorded before had any. In a "
        "distributed run it may come from another rank: look there"
    )
    assert "NaN came out of Tensor.mul.0.forward (output.0: 12)" in second[0][2]


def test_every_step_that_is_kept_is_complete_on_every_rank(folder: Path) -> None:
    runs = [json.loads(path.read_text()) for path in (folder / "dump").rglob("run.json")]
    assert len(runs) == 8
    assert all(run["complete"] for run in runs) and len({run["run_id"] for run in runs}) == 1


def test_training_on_two_ranks_is_bit_identical_with_a_flight_recorder(folder: Path) -> None:
    assert [read_rank(folder, rank)["is_same"] for rank in (0, 1)] == [True, True]
