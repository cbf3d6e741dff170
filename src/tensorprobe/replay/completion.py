"""Dumps of task `replay` hold what cannot be computed again. Here the rest is computed, for whoever needs all of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.count import count_noun
from tensorprobe.replay.result import Execution, ReplayOptions
from tensorprobe.store.reader import Dump, RankDump, open_dump


class NotRepeatedError(UsageError):
    """Executed again, a step does not give the recorded bits."""


def lacks_tensors(dump: Dump) -> bool:
    """Are there tensors in it that are to be computed when somebody asks for them?"""
    return any(_task_of(rank) == "replay" for rank in dump.ranks())


def _task_of(rank: RankDump) -> object:
    try:
        return rank.header.get("task")
    except DumpError:  # said by whoever reads it
        return None
    finally:
        rank.forget()  # there may be thousands, and some have to be read whole for it


@contextmanager
def completed(dump: Dump, device: str = "cpu") -> Iterator[Dump]:
    """The same dump with all its tensors, in a folder that goes away; as it is, if it has them."""
    if not lacks_tensors(dump):
        yield dump
        return
    with tempfile.TemporaryDirectory(prefix="tensorprobe-") as folder:
        write_completed(dump, Path(folder), device)
        yield open_dump(folder)


def write_completed(dump: Dump, folder: Path, device: str = "cpu") -> None:
    """Execute it again in the recorded precision, and write everything there."""
    from tensorprobe.replay import iter_executions

    for done in iter_executions(dump, ReplayOptions("recorded", device, output=folder)):
        check_repeated(done)


def check_repeated(done: Execution) -> None:
    """NotRepeatedError if this machine computes other bits than were recorded."""
    if done.bits is not None and done.bits.different:
        record, slot = done.bits.different[0]
        raise NotRepeatedError(
            f"{done.name} does not come out as recorded when it is executed again here ({record} {slot} is the first "
            f"of {count_noun(len(done.bits.different), 'value')} that came out differently): its tensors can only be "
            "computed where kernels give "
            'the same bits, with as many threads. Record with task "tensor" to have them all.'
        )
