"""`tensorprobe tensor`: single tensors of a dump, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import DumpPath, Rank, Step
from tensorprobe.foreign_text import clean
from tensorprobe.replay.wanted_tensor import write_tensors
from tensorprobe.store.reader import open_dump


def tensor(
    path: DumpPath,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of records, or of single tensors in them.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the files go.")],
    step: Step = None,
    rank: Rank = None,
    device: Annotated[str, typer.Option(help="Where to compute what is missing: cpu or cuda.")] = "cpu",
) -> None:
    """Write single tensors of a dump as files.

    A dump of task "replay" holds few tensors; the others are computed now. That needs torch, and a machine that gives
    the same bits as the one that recorded it.

    tensorprobe tensor dump_path Functional.linear.3.forward -o tensors             all tensors of a call

    tensorprobe tensor dump_path Functional.linear.3.forward.output.0 -o tensors    one of them
    """
    for written in write_tensors(open_dump(path).select(step, rank), names, output, device):
        typer.echo(f"written: {clean(str(written))}")
