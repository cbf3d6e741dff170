"""A program that ends by an error of the GPU: all records up to it are on disk, and those without statistics say why.

Each is a process of its own: after such an error nothing runs on the device any more in the process that made it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.capture.torch.verification import is_wanted
from tests.capture.torch.dump import DumpOnDisk, leaves_in, only_step
from tests.integration.script import make_environment
from tests.length import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(is_wanted(), reason="verify mode waits for every value"),
]

WAYS: list[dict[str, Any]] = [
    {"task": "statistics"},
    {"task": "statistics", "summary_mode": "hash"},
    {"task": "statistics", "summary_mode": "md5"},
    {"task": "statistics", "on_nonfinite": "stop"},
    {"task": "tensor"},
]

START = """
import pathlib, time, torch
from tensorprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger("config.json")
x = torch.ones(16, 4, device="cuda", requires_grad=True)
table = torch.ones(8, 4, device="cuda")
index = torch.tensor([1, 99], device="cuda")
debugger.start()
(torch.relu(x) * 2).sum().backward()
"""
SOUND = [
    *("Torch.relu.0.forward", "Tensor.mul.0.forward", "Tensor.sum.0.forward"),
    *("Tensor.sum.0.backward", "Tensor.mul.0.backward", "Torch.relu.0.backward"),
]
"""What was computed before the error."""

WAIT = """
part = pathlib.Path("dump/step0/rank/dump.json.part")
while not part.exists() or "Torch.relu.0.backward" not in part.read_text():
    time.sleep(0.05)
"""
ASSERT = """
torch.sin(torch.nn.functional.embedding(index, table)).sum().item()
"""
ILLEGAL = """
import triton
import triton.language as tl

@triton.jit
def write_outside(memory):
    tl.store(memory + (1 << 44), 1.0)

y = table * 3
write_outside[(1,)](y)
torch.sin(y).sum().item()
"""
HUGE = """
torch.empty(1 << 46, device="cuda")
"""
FULL = """
torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1] + 0.002)
held, elements = [], 1 << 22
while True:
    try:
        held.append(torch.empty(elements, device="cuda"))
    except torch.OutOfMemoryError:
        if elements == 1:
            raise
        elements //= 4
"""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize(
    ("error", "record", "text"),
    [
        (ASSERT, "Functional.embedding.0.forward", "device-side assert"),
        (ILLEGAL, "Tensor.mul.1.forward", "illegal memory access"),
    ],
    ids=["assert", "illegal"],
)
def test_all_calls_up_to_an_error_of_the_device_are_on_disk(
    tmp_path: Path, way: dict[str, Any], error: str, record: str, text: str
) -> None:
    dump = run_until_error(tmp_path, way, START + WAIT + error)
    assert list(dump.records)[: len(SOUND)] == SOUND
    assert record in dump.records and text in dump.read("run.json")["ended"]
    for name in SOUND:
        assert all(has_numbers(leaf) for leaf in leaves_in(dump.records[name]))
        if way["task"] == "tensor":
            assert all(dump.tensor(leaf) is not None for leaf in leaves_in(dump.records[name]))
    for fields in dump.records.values():
        assert all(has_numbers(leaf) or leaf["reason"] for leaf in leaves_in(fields))
    if error is ASSERT:
        (result,) = dump.records[record]["output"]
        assert result["Max"] is None and "error" in result["reason"].lower()


def test_what_waited_for_a_device_that_is_lost_says_why_it_has_no_statistics(tmp_path: Path) -> None:
    """Whether something was fetched before the error is up to a timer."""
    dump = run_until_error(tmp_path, WAYS[0], START + ASSERT)
    assert list(dump.records)[: len(SOUND)] == SOUND and "Functional.embedding.0.forward" in dump.records
    for fields in dump.records.values():
        assert all(has_numbers(leaf) or "error" in leaf["reason"].lower() for leaf in leaves_in(fields))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("error", [HUGE, FULL], ids=["huge", "full"])
def test_all_calls_up_to_the_end_of_the_memory_are_on_disk_with_their_statistics(
    tmp_path: Path, way: dict[str, Any], error: str
) -> None:
    dump = run_until_error(tmp_path, way, START + error)
    assert list(dump.records)[: len(SOUND)] == SOUND
    assert "OutOfMemoryError" in dump.read("run.json")["ended"]
    *_, last = dump.records.values()
    assert last["failed"].startswith("OutOfMemoryError")
    for name in SOUND:
        for leaf in leaves_in(dump.records[name]):
            assert has_numbers(leaf)
            assert way.get("summary_mode") is None or leaf.get(way["summary_mode"]) or "reason" in leaf
    for fields in dump.records.values():
        assert all(has_numbers(leaf) or leaf["reason"] for leaf in leaves_in(fields))


def run_until_error(folder: Path, way: dict[str, Any], text: str) -> DumpOnDisk:
    """Run a program that ends by an exception, and read what it has left."""
    options = {key: value for key, value in way.items() if key != "summary_mode"}
    section = {"summary_mode": way["summary_mode"]} if "summary_mode" in way else {}
    config = {"level": "L1", "dump_path": str(folder / "dump"), "step": [], "rank": [], **options}
    (folder / "config.json").write_text(json.dumps({**config, way["task"]: section}))
    (folder / "program.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=make_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode != 0, ended.stderr
    dump = only_step(folder / "dump")
    assert dump.records and not (dump.folder / "dump.json.part").exists(), ended.stderr
    assert dump.read("run.json")["complete"] is False
    return dump


def has_numbers(leaf: dict[str, Any]) -> bool:
    return leaf["Max"] is not None and leaf["Norm"] is not None
