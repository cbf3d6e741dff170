"""`tensorprobe truth`: one run against what it means."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Device, DumpPath, Format, Json, OldFormat, Rank, Step
from tensorprobe.cli.progress import total_progress_bar
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.model.count import count_noun
from tensorprobe.replay import MemoryLimit, iter_truths
from tensorprobe.replay.meaning.registry import load_meanings
from tensorprobe.replay.result import Truth
from tensorprobe.report.console import make_console
from tensorprobe.store.reader import Dump, open_dump

_NOTHING_WRONG, _WRONG, _NOT_CHECKED = 0, 1, 2
_SHOWN_ROWS = 20


Sort = Annotated[str | None, typer.Option(help="Order of the table: order (as the calls ran), own, error or effect.")]
Filter = Annotated[str | None, typer.Option("--filter", help="Only calls with this text in their name.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Write report.html, truth.csv and truth.json there."),
]
Memory = Annotated[
    float | None,
    typer.Option(metavar="GIB", help="How much memory the replay may take; by default what is available."),
]
Meaning = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.py", help="Your file that says what kernels compute, with @tensorprobe.meaning."),
]


def truth(
    path: DumpPath,
    step: Step = None,
    rank: Rank = None,
    sort: Sort = None,
    text: Filter = None,
    output: Output = None,
    as_json: Json = False,
    output_format: OldFormat = Format.TEXT,
    device: Device = "cpu",
    memory: Memory = None,
    meaning: Meaning = None,
) -> None:
    """Say where one run loses its digits, and what in it is wrong. No second run is needed.

    The recorded step is executed again in float64. That shows what it means without rounding. Needs torch, and a dump
    recorded with task "tensor" or "replay" at level L1 or mix.

    tensorprobe truth dump_path                      the verdict

    tensorprobe truth dump_path --sort effect        the calls that change the loss most come first

    tensorprobe truth dump_path --filter layers.3    only some calls

    tensorprobe truth dump_path -o result            a page to look at, and every value as CSV and JSON

    Exit codes: 0 nothing is wrong, 1 something is wrong, 2 the run could not be replayed.
    """
    from tensorprobe.report.truth_file import FILES
    from tensorprobe.report.truth_row import ORDERS

    if sort is not None and sort not in ORDERS:
        raise UsageError(f"--sort {sort!r} is not one of {', '.join(ORDERS)}")
    limit = MemoryLimit(memory, lambda sentence: typer.echo(f"note: {clean(sentence)}", err=True))
    for file in meaning or ():
        load_meanings(file)
    truths = _find_truths(path, open_dump(path).select(step, rank), output, device, limit)
    wants_json = as_json or output_format is Format.JSON
    with suppress(BrokenPipeError):
        _print(truths, wants_json, sort, text)
        for path in [] if output is None else [output / name for name in FILES]:
            typer.echo(f"written: {clean(str(path))}", err=wants_json)
    if any(found.findings for found in truths):
        raise typer.Exit(_WRONG)
    raise typer.Exit(_NOTHING_WRONG if all(found.is_checked for found in truths) else _NOT_CHECKED)


def _find_truths(path: Path, dump: Dump, output: Path | None, device: str, limit: MemoryLimit) -> list[Truth]:
    from tensorprobe.report.truth_file import prepared_truth_folder, write_truth_files

    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(prepared_truth_folder(output, path))
        with total_progress_bar("replaying") as reach:
            truths = list(iter_truths(dump, device, reach, limit))
        if output is not None:
            write_truth_files(output, dump, truths)
    return truths


def _print(truths: list[Truth], as_json: bool, sort: str | None, text: str | None) -> None:
    from tensorprobe.report.truth_file import write_truth_json
    from tensorprobe.report.truth_row import build_truth_rows
    from tensorprobe.report.truth_text import print_truth

    if as_json:
        write_truth_json(sys.stdout.write, truths)
        return
    for found in truths:
        wants_table = sort is not None or text is not None
        rows = build_truth_rows(found, sort or "order", text) if wants_table else []
        if text is not None and not rows:
            typer.echo(f"note: no call of {clean(found.name)} has {clean(text)!r} in its name.", err=True)
        shown = rows if text is not None else rows[:_SHOWN_ROWS]
        more = (
            f"{count_noun(len(rows) - len(shown), 'more value')}: -o DIR writes all" if len(shown) < len(rows) else ""
        )
        print_truth(make_console(), found, shown, more)
