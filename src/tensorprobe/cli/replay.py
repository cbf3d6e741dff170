"""`tensorprobe replay`: execute a recorded step again."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Device, DumpPath, Rank, Step
from tensorprobe.cli.progress import total_progress_bar
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.model.count import count_noun
from tensorprobe.replay import iter_executions
from tensorprobe.replay.result import Execution, ReplayOptions
from tensorprobe.store.reader import open_dump

_SAME, _OTHER = 0, 1
_SHOWN = 5


class Dtype(str, enum.Enum):
    FLOAT64 = "float64"
    RECORDED = "recorded"


DtypeOption = Annotated[
    Dtype, typer.Option(help="float64: what the step means. recorded: the same numbers again, bit for bit.")
]
Until = Annotated[str | None, typer.Option(metavar="CALL", help="Stop after this record.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write what comes out there, as a dump.")
]
Memory = Annotated[
    float | None, typer.Option(metavar="GIB", help="How much memory it may take; by default what is available.")
]


def replay(
    path: DumpPath,
    dtype: DtypeOption = Dtype.FLOAT64,
    device: Device = "cpu",
    until: Until = None,
    output: Output = None,
    memory: Memory = None,
    step: Step = None,
    rank: Rank = None,
) -> None:
    """Execute a recorded step again, without the program that made it.

    The new dump has the same records under the same names, so that `show` and `compare` read it. Needs torch, and a
    dump recorded at level L1 or mix with task "tensor" or "replay".

    tensorprobe replay dump_path -o truth                  every value in float64: what the step means

    tensorprobe replay dump_path --dtype recorded          does the same machine give the same bits again?

    tensorprobe replay dump_path --until Torch.add.3.forward -o part

    Exit codes: 0 it was replayed, 1 some values came out otherwise (--dtype recorded), 2 it could not be replayed.
    """
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not an empty folder: give another one, and nothing is lost.")
    options = ReplayOptions(dtype.value, device, until, output, memory)
    is_same = True
    with total_progress_bar("replaying") as reach:
        for done in iter_executions(open_dump(path).select(step, rank), options, reach):
            for line in describe_execution(done, dtype.value):
                typer.echo(clean(line))
            is_same = is_same and (done.bits is None or bool(done.bits))
    if output is not None:
        typer.echo(f"next: tensorprobe show {clean(str(output))}")
    raise typer.Exit(_SAME if is_same else _OTHER)


def describe_execution(done: Execution, dtype: str) -> Iterator[str]:
    """What to say of one step of one process."""
    coverage = done.coverage
    yield f"{done.name}: {coverage.replayed:,} of {coverage.call_count:,} calls executed again in {dtype} precision."
    if done.bits is not None:
        bits = done.bits
        if bits.different:
            yield f"  {len(bits.different):,} of {bits.value_count:,} values come out otherwise than recorded, first:"
            yield from (f"    {record} {slot}" for record, slot in bits.different[:_SHOWN])
        else:
            values = count_noun(bits.value_count, "value comes", "values come")
            yield f"  {'The' if bits.value_count == 1 else 'All'} {values} out as recorded, bit for bit."
        if bits.unknown:
            unknown = count_noun(len(bits.unknown), "value was", "values were")
            yield f"  {unknown} recorded without content: not compared."
    if coverage.random:
        yield f"  {count_noun(coverage.random, 'call')} drew random numbers: those recorded are used."
    if coverage.gaps:
        yield f"  {count_noun(len(coverage.gaps), 'call')} could not be executed again; the recorded results are used:"
        yield from (f"    {name}: {reason}" for name, reason in list(coverage.gaps.items())[:_SHOWN])
    if done.folder is not None:
        yield f"  written: {done.folder}"
