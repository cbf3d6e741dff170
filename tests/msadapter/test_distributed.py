"""Collectives of a program for MSAdapter on two ranks: what they were given, and what the tensors hold afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.length import PATIENCE_SECONDS
from tests.msadapter.program import DUMP, DumpOnDisk

SCRIPT = Path(__file__).with_name("distributed_program.py")
MSRUN = Path(sys.executable).with_name("msrun")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[DumpOnDisk]:
    if not MSRUN.exists() and shutil.which("msrun") is None:
        pytest.skip("msrun is not installed beside this Python")
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2] / "src")])
    binaries = os.pathsep.join([str(MSRUN.parent), os.environ.get("PATH", "")])
    ranks = ["--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True", "--log_dir=log"]
    done = subprocess.run(
        [str(MSRUN), *ranks, str(SCRIPT)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PATH": binaries},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [DumpOnDisk(folder / DUMP / "step0" / f"rank{rank}") for rank in range(2)]


def arrays(dump: DumpOnDisk, leaves: list[Any]) -> list[list[float]]:
    return [dump.array(leaf).tolist() for leaf in leaves if "data_name" in leaf]


def test_every_collective_is_a_record_on_every_rank(dumps: list[DumpOnDisk]) -> None:
    for dump in dumps:
        assert [name for name in dump.records if name.startswith("Distributed")] == [
            "Distributed.all_reduce.0.forward",
            "Distributed.all_reduce.1.forward",
            "Distributed.broadcast.0.forward",
            "Distributed.all_gather.0.forward",
            "Distributed.barrier.0.forward",
        ]


def test_what_went_in_and_what_the_tensor_holds_afterwards(dumps: list[DumpOnDisk]) -> None:
    for rank, dump in enumerate(dumps):
        record = dump.records["Distributed.all_reduce.0.forward"]
        assert arrays(dump, record["input_args"]) == [[rank + 1.0] * 3]
        assert arrays(dump, record["output"]) == [[3.0] * 3]
        record = dump.records["Distributed.broadcast.0.forward"]
        assert arrays(dump, record["input_args"]) == [[rank + 1.0] * 3]
        assert arrays(dump, record["output"]) == [[1.0] * 3]


def test_an_asynchronous_collective_has_the_result_that_was_waited_for(dumps: list[DumpOnDisk]) -> None:
    for dump in dumps:
        record = dump.records["Distributed.all_reduce.1.forward"]
        assert arrays(dump, record["output"]) == [[3.0] * 3]


def test_the_parts_of_a_gathered_list_are_in_it(dumps: list[DumpOnDisk]) -> None:
    for dump in dumps:
        parts = dump.records["Distributed.all_gather.0.forward"]["output"][0]
        np.testing.assert_array_equal(arrays(dump, parts), [[3.0] * 3, [6.0] * 3])
