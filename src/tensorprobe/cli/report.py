"""`tensorprobe report`: a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tensorprobe.cli.option import Rank, Step
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.report.page_file import check_page, write_page_file
from tensorprobe.store.reader import open_dump

_FILE = "report.html"


def report(
    path: Annotated[
        Path,
        typer.Argument(help="A folder with compare.json, that file, or a run: a dump_path or a step or rank in it."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the page goes; by default report.html, beside compare.json or here.",
        ),
    ] = None,
    step: Step = None,
    rank: Rank = None,
) -> None:
    """Make a page to look at: one HTML file that opens without a network, of a saved comparison or of one run.

    tensorprobe report result                     beside result/compare.json

    tensorprobe report dump_path -o run.html      one run: its statistics, NaN and Inf, gradients

    The page holds values and source lines of the runs. Look at it before you send it to somebody.
    """
    from tensorprobe.report.page.saved import find_saved

    check_page()
    saved = find_saved(path)
    default = Path(_FILE) if saved is None else saved.parent / _FILE
    target = default if output is None else output / _FILE if output.is_dir() else output
    _check_target(target, path if saved is None else None)
    write_page_file(target, _build_page(path, saved, step, rank))
    typer.echo(f"written: {clean(str(target))}")


def _check_target(target: Path, run: Path | None) -> None:
    """A page replaces an older page, and nothing else; nothing is put into a dump."""
    if not target.parent.is_dir():
        raise UsageError(f"-o {target}: the folder {target.parent} does not exist.")
    if target.exists() and target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"-o {target} is there already, and no page: its name does not end in .html. Give another name."
        )
    if run is not None and run.is_dir() and target.resolve().is_relative_to(run.resolve()):
        raise UsageError(f"-o {target} lies in the dump {run}. Give a place of its own.")


def _build_page(path: Path, saved: Path | None, step: int | None, rank: int | None) -> dict[str, Any]:
    if saved is None:
        from tensorprobe.report.page.run import build_run_page

        return build_run_page(open_dump(path).select(step, rank))
    from tensorprobe.report.page.saved import build_saved_page

    if step is not None or rank is not None:
        raise UsageError("--step and --rank choose a part of a run; a saved comparison is shown whole.")
    return build_saved_page(saved)
