"""A recorded step is a program: here it is executed again, without the code that made it.

In float64 this gives what the program means, without its rounding: `truth` holds a run against it. Needs torch, which
is imported when something is replayed, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.replay.result import Finding, Truth
from tensorprobe.store.reader import Dump, RankDump, open_dump
from tensorprobe.store.record_file import RecordFile
from tensorprobe.store.slot import TensorSlot

Reach = Callable[[int, int], None]
"""Called with how many calls are done and how many there are."""


class TruthReport:
    """What the truth says of a run: true where nothing is wrong."""

    def __init__(self, runs: list[Truth]) -> None:
        self.runs = runs
        """One for each step and rank."""

    def __bool__(self) -> bool:
        return all(self.runs)

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong, in all steps and ranks."""
        return [finding for run in self.runs for finding in run.findings]


def truth(dump: str | Path, *, step: int | None = None, rank: int | None = None, device: str = "cpu") -> TruthReport:
    """Replay a run in float64 and hold it against what it means: its loss, its gradients, every call.

    `dump` is a dump_path, or the folder of a step or rank in it, recorded with task "tensor" at level L1 or mix.
    """
    return TruthReport(list(iter_truths(open_dump(dump).select(step, rank), device)))


def iter_truths(dump: Dump, device: str = "cpu", reach: Reach = lambda done, total: None) -> Iterator[Truth]:
    """One step of one rank after the other."""
    for one in dump.ranks():
        check_replayable(one)
    torch_device = find_device(device)
    from tensorprobe.replay.program import read_program
    from tensorprobe.replay.truth import find_truth

    for one in dump.ranks():
        program = read_program(one)
        total, done = sum(1 for _ in program.calls()), 0

        def advance(total: int = total) -> None:
            nonlocal done
            done += 1
            reach(done, total)

        yield find_truth(program, torch_device, advance)


def check_replayable(rank: RankDump) -> None:
    """DumpError, with what to record instead, for a dump that cannot be executed again."""
    header, where = rank.header, rank.folder
    if header.get("framework") not in (None, "pytorch"):
        raise DumpError(
            f"{where} was recorded in {header.get('framework')}; only dumps of PyTorch can be replayed so far."
        )
    if header.get("level") in ("L0", "debug"):
        raise DumpError(
            f"{where} was recorded at level {header['level']}, which has no calls to replay: record it at L1 or mix."
        )
    if rank.api_dump is not None:
        check_api_dump(rank)
    if header.get("task") != "tensor":
        raise DumpError(
            f'{where} was recorded with task "{header.get("task")}", which keeps no tensors to start from: '
            'record it with task "tensor".'
        )


def check_api_dump(rank: RankDump) -> None:
    """The same for a dump of api_dump."""
    where = rank.folder
    if not isinstance(rank.dump_file, RecordFile):
        raise DumpError(
            f"{where} has no dump.json: it was written by TroubleShooter, and does not say enough to replay it."
        )
    if rank.header.get("task") != "tensor":
        return
    for record in rank.records():
        for slot in record.slots():
            if isinstance(slot, TensorSlot) and slot.data_name is None:
                raise DumpError(
                    f"{where} has no file for {slot.slot} of {record.name}: what api_dump filters is needed for a "
                    'replay. Record it with api_dump_start(dump_type="all", filter_data=False).'
                )


def find_device(name: str) -> Any:
    """The device of torch; UsageError where torch, or the device, is not there."""
    try:
        import torch
    except ImportError:
        raise UsageError("a replay needs torch: pip install torch") from None
    if name not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not one of cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device 'cuda' was asked for, and torch finds none here: leave it out to replay on the CPU")
    return torch.device(name)
