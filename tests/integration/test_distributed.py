"""Two processes under torchrun: one folder per rank, collectives under Distributed, the rank filter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from tensorprobe.pytorch import PrecisionDebugger

config, starts_early = sys.argv[1], sys.argv[2] == "early"
debugger = PrecisionDebugger(config)
if not starts_early:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(3, 2)
debugger.start(model)
if starts_early:
    dist.init_process_group("gloo")
x = torch.full((2, 3), float(dist.get_rank() + 1))
y = model(x)
dist.all_reduce(x)
work = dist.all_reduce(y.detach(), async_op=True)
work.wait()
y.sum().backward()
debugger.stop()
debugger.step()
dist.destroy_process_group()
"""


def run(tmp_path: Path, when: str, **options: Any) -> Path:
    script, config, dump = tmp_path / "train.py", tmp_path / "config.json", tmp_path / "dump"
    script.write_text(SCRIPT)
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(dump), **options}))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launcher, str(script), str(config), when], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return dump


@pytest.mark.parametrize("when", ["early", "late"])
def test_each_rank_has_its_folder_and_collectives_are_records(tmp_path: Path, when: str) -> None:
    dump = run(tmp_path, when)
    assert sorted(path.name for path in (dump / "step0").iterdir()) == ["rank0", "rank1"]
    for rank in (0, 1):
        records = json.loads((dump / "step0" / f"rank{rank}" / "dump.json").read_text())["data"]
        reduced = records["Distributed.all_reduce.0.forward"]
        assert reduced["input_args"][0]["Max"] == rank + 1
        assert reduced["output"][0]["Max"] == 3
        assert records["Module.Linear.forward.0"]["input_args"][0]["Max"] == rank + 1
        assert "asynchronous" in records["Distributed.all_reduce.1.forward"]["note"]


def test_only_the_ranks_of_the_configuration_are_recorded(tmp_path: Path) -> None:
    dump = run(tmp_path, "late", rank=[1])
    assert [path.name for path in (dump / "step0").iterdir()] == ["rank1"]
