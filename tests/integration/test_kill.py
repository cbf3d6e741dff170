"""SIGKILL at random moments, 24 times (200 times in the long form): the dump always reads, no window that was closed
is missing, and no file stays that belongs to nothing.

One process imports torch and forks the programs that are killed: each makes its debugger after the fork, trains until
it is killed, and says through a pipe which windows it has closed. The moments spread over the first windows, not over
time: however busy the machine is, all but the first come when something was recorded.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import Dump, RankDump, open_dump
from tensorprobe.store.recover import recover_dump
from tests.integration.script import run_script
from tests.length import IS_LONG

KILLS = 50 if IS_LONG else 6
WINDOWS = 3

KILLER = """
import itertools, json, os, random, signal, sys, time
import torch
from torch import nn
from tensorprobe.capture import sink
from tensorprobe.capture.context import make_session
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.config import load_config

sink.FLUSH_RECORDS = 8  # so that most kills come between two flushes of a window
write_file = TorchReader.write_file

def write_slowly(reader, copy, file):  # so that files are later than their records would be
    write_file(reader, copy, file)
    time.sleep(0.002)

TorchReader.write_file = write_slowly
WINDOWS = int(sys.argv[2])
options = json.loads(sys.argv[3])

class Scale(nn.Module):  # no matrices: the threads that multiply them are gone after a fork, and are waited for
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 256))

    def forward(self, x):
        return x * self.weight

def train(folder, say, steps):
    torch.manual_seed(0)
    model = nn.Sequential(Scale(), nn.ReLU(), Scale())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = make_session(load_config(None, dump_path=folder, **options), "torch")
    for step in steps:
        for window in range(WINDOWS):
            x = torch.randn(16, 256)
            session.start(model)
            for _ in range(4):
                x = x.tanh() * 1.5
            hidden = model(x)
            loss = hidden.square().sum()
            if window:
                loss.backward()
            session.stop()
            if not window:
                loss.backward()  # outside of the window
            say([step, window])
            optimizer.step()
        session.step()

def main():
    torch.set_num_threads(1)
    windows = []
    def note(place):
        text = open(f"reference/step{place[0]}/rank/dump.json").read()
        windows.append([*place, list(json.loads(text)["data"])])
    train("reference", note, range(2))

    chance = random.Random()
    closed = []
    kills = int(sys.argv[1])
    for kill in range(kills):
        receiving, sending = os.pipe()
        child = os.fork()
        if not child:
            say = lambda place: os.write(sending, json.dumps(place).encode() + b"\\n")
            say("begins")
            train(f"killed{kill}", say, itertools.count())
        os.close(sending)
        with os.fdopen(receiving) as pipe:
            said = [pipe.readline() for _ in range(1 + 6 * kill // kills)]
            time.sleep(0.02 * chance.random())  # somewhere in the window that follows, or in a later one
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said += pipe.read().splitlines()
        closed.append([json.loads(line) for line in said[1:]])
    print(json.dumps([windows, closed]))

main()
"""


@dataclass
class Reference:
    """A run that was not killed: what each step holds, and the names of it that are there after each window."""

    steps: list[dict[str, Any]]
    names: dict[int, list[str]]

    def check(self, rank: RankDump, closed_windows: int) -> None:
        """The records of a killed run are those of the reference up to some place behind the last closed window."""
        assert rank.step is not None
        expected = self.steps[0]
        found = {record.name: record.fields for record in rank.records()}
        order = [name for name in expected if not name.endswith("parameters_grad")]
        calls = [name for name in found if not name.endswith("parameters_grad")]  # their names come again and again
        assert order[: len(calls)] == calls
        needed = self.names[closed_windows - 1] if closed_windows else []
        assert not set(needed) - set(found), "a window that was closed is missing"
        assert not set(found) - set(expected)
        if rank.step == 0:
            assert all(same(found[name], expected[name]) for name in calls)
        for name in needed:
            assert bool(rank.stack(name)) == (".forward" in name), name


def same(found: Any, expected: Any) -> bool:
    return json.dumps(found) == json.dumps(expected)


def named_files(rank: RankDump) -> Iterator[str]:
    """By its records, and by run.json, which has the backward passes."""
    waiting: list[Any] = [rank.run.get("backward_passes"), *(record.fields for record in rank.records())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting.extend(node.values())
            if isinstance(node.get("data_name"), str):
                yield node["data_name"]
        elif isinstance(node, list):
            waiting.extend(node)


def check_tensor_files(rank: RankDump) -> None:
    for name in named_files(rank):
        torch.load(rank.tensor_path(name), weights_only=True)


def check_nothing_is_left_over(dump: Dump) -> None:
    files = [path for path in dump.path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.endswith((".part", ".tmp", ".lock"))]
    known = {rank.tensor_path(name) for rank in dump.ranks() for name in named_files(rank)}
    assert {path for path in files if path.suffix == ".pt"} == known


def content(dump: Dump) -> list[Any]:
    return [[(record.name, record.fields) for record in rank.records()] for rank in dump.ranks()]


def read_killed(folder: Path, closed: list[list[int]]) -> Dump | None:
    """None for a run that was killed before it had anything to write."""
    try:
        return open_dump(folder)
    except DumpError:
        assert not closed and not [
            path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".tmp", ".lock")
        ]
        return None


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async_dump"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_killed_run_reads_up_to_its_last_window_and_recover_leaves_nothing_over(
    task: str, is_async: bool, memory_disk: Path
) -> None:
    options = {"level": "mix", "task": task, "async_dump": is_async}
    arguments = [str(KILLS), str(WINDOWS), json.dumps(options)]
    closings, reports = json.loads(run_script(memory_disk, KILLER, *arguments).stdout)
    reference = Reference(
        [
            {record.name: record.fields for record in rank.records()}
            for rank in open_dump(memory_disk / "reference").ranks()
        ],
        {window: names for step, window, names in closings if step == 0},
    )
    recovered = 0
    for kill, closed in enumerate(reports):
        dump = read_killed(memory_disk / f"killed{kill}", closed)
        if dump is None:
            continue
        for rank in dump.ranks():
            windows = [window for step, window in closed if step == rank.step]
            reference.check(rank, len(windows))
            check_tensor_files(rank)
        before = content(dump)
        actions = [action for done in recover_dump(dump.path) for action in done.actions]
        assert not [action for action in actions if "missing" in action]
        recovered += bool(actions)
        again = open_dump(dump.path)
        assert content(again) == before and recover_dump(dump.path) == []
        check_nothing_is_left_over(again)
        assert not any(rank.problems for rank in again.ranks() if rank.dump_file)
    assert recovered > KILLS // 2


def test_after_a_kill_the_last_steps_of_a_flight_recorder_are_readable(tmp_path: Path) -> None:
    script = """
import os, signal, torch
from tensorprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(dump_path="dump", flight_recorder=3)
for step in range(8):
    debugger.start()
    torch.ones(3) * step
    if step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    debugger.stop()
    debugger.step()
"""
    run_script(tmp_path, script, code=-signal.SIGKILL)
    ranks = {rank.step: rank for rank in open_dump(tmp_path / "dump").ranks()}
    assert sorted(ranks) == [4, 5, 6, 7]
    assert all(ranks[step].is_complete and len(ranks[step].run) for step in (4, 5, 6))
