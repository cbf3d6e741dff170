"""`tensorprobe repro`: one recorded call as a script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import DumpPath, Rank, Step
from tensorprobe.foreign_text import clean
from tensorprobe.replay import make_repro
from tensorprobe.store.reader import open_dump


def repro(
    path: DumpPath,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The forward record of the call.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the script and its tensors go.")],
    step: Step = None,
    rank: Rank = None,
) -> None:
    """Make one recorded call into a script: what one attaches to a bug report.

    It makes the call on its recorded inputs, forward and backward, and prints what was recorded against the same call
    on this machine and against float64. It needs the framework, and not tensorprobe.

    tensorprobe repro dump_path Functional.linear.3.forward -o bug

    python bug/repro.py
    """
    written = make_repro(open_dump(path).select(step, rank), call, output)
    typer.echo(f"written: {clean(str(written))}")
    typer.echo(f"next: python {clean(str(written))}")
