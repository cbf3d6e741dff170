"""api_dump in programs of their own: several ranks, and a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tensorprobe.migrator import api_dump_compare
from tensorprobe.store.reader import open_dump
from tests.integration.script import SOURCE
from tests.integration.torchrun import run_ranks
from tests.length import wait_until
from tests.migrator.api_dump_run import Dumped

RANKS = """
import sys, torch, torch.distributed as dist
from torch import nn
from tensorprobe.migrator import api_dump_init, api_dump_start, api_dump_stop
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
api_dump_init(net, sys.argv[1])
dist.init_process_group("gloo")
api_dump_start()
net(torch.full((2, 3), float(dist.get_rank())))
api_dump_stop()
dist.destroy_process_group()
"""
ENDLESS = """
import sys, time, torch
from torch import nn
from tensorprobe.migrator import api_dump_init, api_dump_start
net = nn.Linear(3, 3)
api_dump_init(net, sys.argv[1])
api_dump_start()
while True:
    net(torch.ones(2, 3))
    time.sleep(0.01)
"""


def test_every_rank_has_its_folder_and_is_compared(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(RANKS)
    run_ranks(2, script, str(tmp_path / "dump"))
    for rank in (0, 1):
        found = Dumped(tmp_path / "dump", "torch", rank)
        assert found.calls[-2:] == ["NN_Linear_0_forward", "NN_ReLU_0_forward"]
        (line,) = (line for line in found.info if line[0] == "NN_Linear_0_forward_input.0")
        assert line[5] == [float(rank)] * 3
    result = api_dump_compare(tmp_path / "dump", tmp_path / "dump")
    assert result and [rank.reference_name for rank in result] == ["rank0", "rank1"]


def test_a_kill_leaves_whole_lines_and_the_files_that_they_name(tmp_path: Path) -> None:
    script, dump = tmp_path / "program.py", tmp_path / "dump"
    script.write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen([sys.executable, str(script), str(dump)], env=environment, stderr=subprocess.DEVNULL)
    info = dump / "rank0" / "torch_api_dump_info.pkl"
    try:
        wait_until(lambda: info.exists() and info.stat().st_size > 2000)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    found = Dumped(dump, "torch")
    assert len(found.slots) > 10
    assert all(found.path(slot).exists() for slot in found.slots)
    (rank,) = open_dump(dump).ranks()
    assert not rank.is_complete and {record.name for record in rank.records()} >= set(found.calls)
