"""`tensorprobe show`: what was recorded, what is wrong first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Format, Json, OldFormat, Rank, Step
from tensorprobe.cli.progress import progress_bar
from tensorprobe.errors import DumpError
from tensorprobe.report.console import make_console
from tensorprobe.report.json import iter_json
from tensorprobe.report.rank import RankReport, ShowOptions, build_rank_report, read_rank_report
from tensorprobe.report.text import print_reports
from tensorprobe.store.reader import Dump, RankDump, open_dump

_LONG_BYTES = 20 * 2**20


def show(
    path: Annotated[Path, typer.Argument(help="A dump_path, a step or rank folder in it, or a dump.json.")],
    step: Step = None,
    rank: Rank = None,
    as_json: Json = False,
    depth: Annotated[int | None, typer.Option(min=1, help="Only so many levels of the tree.")] = None,
    text: Annotated[
        str | None,
        typer.Option("--filter", help="Only records with this text in their name, module path or caller, in full."),
    ] = None,
    output_format: OldFormat = Format.TEXT,
) -> None:
    """Show what was recorded: coverage, NaN and Inf and where they arise, failed calls, then the tree of calls.

    tensorprobe show dump_path                          all steps and ranks

    tensorprobe show dump_path --step 0 --rank 3        one of them

    tensorprobe show dump_path --depth 2                only the outer modules

    tensorprobe show dump_path --filter layers.3.attn   every tensor of these calls

    tensorprobe show dump_path --json | jq '.ranks[].non_finite'
    """
    dump = open_dump(path).select(step, rank)
    errors: list[str] = []
    reports = _read_reports(dump, ShowOptions(depth, text), errors)
    if as_json or output_format is Format.JSON:
        for piece in iter_json(str(path), reports):
            sys.stdout.write(piece)
    else:
        print_reports(make_console(), reports, has_filter=text is not None)
    if errors:
        raise DumpError("\n".join(errors))


def _read_reports(dump: Dump, options: ShowOptions, errors: list[str]) -> Iterator[RankReport]:
    ranks = list(dump.ranks())
    read = read_rank_report if len(ranks) > 1 else build_rank_report
    for rank in ranks:
        with progress_bar(f"reading {rank.name}", is_long=_is_long(rank)) as advance:
            report = read(rank, options, advance)
        if report.error:
            errors.append(report.error)
        yield report


def _is_long(rank: RankDump) -> bool:
    return rank.dump_file is not None and rank.dump_file.size_bytes > _LONG_BYTES
