"""`tensorprobe compare`: where two runs first differ."""

from __future__ import annotations

import atexit
import gc
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Format, Json, OldFormat, Processes, Rank, Step
from tensorprobe.cli.progress import total_progress_bar
from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.garbage import garbage_left_alone
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import NO_ANSWER, Comparison
from tensorprobe.compare.row import iter_blocks
from tensorprobe.errors import UsageError
from tensorprobe.report.compare_file import FILES, Written, prepared_folder, read_files, write_files
from tensorprobe.report.compare_json import iter_compare_json
from tensorprobe.report.compare_statement import format_share
from tensorprobe.report.compare_summary import Summary, find_lowest_coverage, find_lowest_value_coverage, summarize
from tensorprobe.report.compare_text import WHERE_MORE, print_summary
from tensorprobe.report.console import make_console
from tensorprobe.report.escape import clean

_AGREE, _DIFFER, _NOT_COMPARED = 0, 1, 2


class Judge(str, Enum):
    """By what two runs are judged."""

    AUTO = "auto"
    TRUTH = "truth"
    GROWTH = "growth"


Reference = Annotated[
    Path,
    typer.Argument(
        metavar="REFERENCE", help="The run that is right: a dump_path, a step or rank folder in it, or a dump.json."
    ),
]
Candidate = Annotated[Path, typer.Argument(metavar="CANDIDATE", help="The run that is in doubt.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Write report.html and compare.csv there; see --files."),
]
Files = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="What -o writes: some of csv, html, xlsx, json. By default csv,html."),
]
Mapping = Annotated[
    Path | None, typer.Option(metavar="FILE", help="YAML: which calls, modules and tensors belong together.")
]
RelativeTolerance = Annotated[
    float | None, typer.Option(help="With atol: a fixed tolerance, atol + rtol * |reference|, for every value.")
]
AbsoluteTolerance = Annotated[float | None, typer.Option(help="See rtol.")]
First = Annotated[bool, typer.Option("--first", help="Stop at the first call that went wrong.")]
RequiredCoverage = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Exit code 2 if less than this fraction of the calls is paired, or of their values compared: 0.95.",
    ),
]
JudgeOption = Annotated[
    Judge,
    typer.Option(
        help="truth: execute both runs again in float64 and compare what they mean. growth: judge by how errors "
        "grow from call to call. auto: by truth where that is possible."
    ),
]
AllowUncompared = Annotated[
    bool,
    typer.Option(
        "--allow-uncompared",
        help="Exit code 0, not 2, if all agrees but something that the results depend on could not be compared.",
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where tensors are compared: local, in processes of this machine; ray, on a Ray cluster that runs or is "
        "started for it; ray://HOST:PORT, on that one.",
    ),
]


def compare(
    reference: Reference,
    candidate: Candidate,
    output: Output = None,
    files: Files = None,
    mapping: Mapping = None,
    step: Step = None,
    rank: Rank = None,
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    first: First = False,
    require_coverage: RequiredCoverage = None,
    by: JudgeOption = Judge.AUTO,
    allow_uncompared: AllowUncompared = False,
    as_json: Json = False,
    output_format: OldFormat = Format.TEXT,
    processes: Processes = None,
    engine: Engine = "local",
) -> None:
    """Say where two runs first differ: the first call whose inputs agree and whose output does not.

    tensorprobe compare good bad                         the verdict

    tensorprobe compare good bad -o result               a page to look at, and every value as CSV

    tensorprobe compare good bad -o result --files csv,xlsx,json

    tensorprobe compare good/step0 bad/step0 --rank 3    one step of one rank

    tensorprobe compare good bad --mapping names.yaml    where names differ

    tensorprobe compare good bad --require-coverage 0.95 && echo the same

    tensorprobe compare good bad --json | jq .verdict

    tensorprobe compare s3://runs/good s3://runs/bad --engine ray

    Exit codes: 0 the runs agree, 1 they differ, 2 they could not be compared.
    """
    if files is not None and output is None:
        raise UsageError(f"--files {files!r} says what -o writes. Give a folder, too: -o result")
    wanted = _Wanted(output, read_files(files), as_json or output_format is Format.JSON)
    has_page = output is not None and not {"html", "json"}.isdisjoint(wanted.files)
    options = CompareOptions(
        mapping, step, rank, rtol, atol, first, processes, by.value, allow_uncompared, has_page, engine=engine
    )
    comparison = _compare_and_report(reference, candidate, options, wanted)
    _check_coverage(comparison, require_coverage)
    raise typer.Exit(_exit_code(comparison))


@dataclass(frozen=True)
class _Wanted:
    """What is to be said, and where."""

    output: Path | None
    files: tuple[str, ...]
    as_json: bool

    @property
    def where_more(self) -> str:
        """Where what does not fit into the terminal can be seen."""
        return WHERE_MORE if self.output is None else f"see {self.output / FILES[self.files[0]]}"


def _compare_and_report(reference: Path, candidate: Path, options: CompareOptions, wanted: _Wanted) -> Comparison:
    output = wanted.output
    atexit.register(gc.freeze)  # or Python looks through both runs once more before it ends
    with garbage_left_alone(), ExitStack() as stack:
        if output is not None:
            names = [FILES[name] for name in wanted.files]
            stack.enter_context(prepared_folder(output, (reference, candidate), names))
        comparison = _compare(reference, candidate, options)
        summary = summarize(comparison)
        with suppress(BrokenPipeError):  # who has seen enough still gets the files and the exit code
            _print(summary, wanted)
        if output is not None:
            with total_progress_bar("writing") as reach:
                written = write_files(output, summary, wanted.files, reach)
            with suppress(BrokenPipeError):
                _print_written(written, to_stderr=wanted.as_json)
        kept: list[object] = [comparison]
        kept.append(
            kept
        )  # a cycle: it is left to Python's search for them, which the end of the process does not wait for
    return comparison


def _compare(reference: Path, candidate: Path, options: CompareOptions) -> Comparison:
    with total_progress_bar("comparing") as reach:
        return compare_runs(reference, candidate, options, reach)


def _print(summary: Summary, wanted: _Wanted) -> None:
    if wanted.as_json:
        for piece in iter_compare_json(summary, iter_blocks(summary.comparison)):
            sys.stdout.write(piece)
    else:
        print_summary(make_console(), summary, wanted.where_more)
    sys.stdout.flush()


def _print_written(written: Written, to_stderr: bool) -> None:
    typer.echo("", err=to_stderr)
    for path in written.paths:
        typer.echo(f"written: {clean(str(path))}", err=to_stderr)
    for note in written.notes:
        typer.echo(f"note: {clean(note)}", err=to_stderr)


def _check_coverage(comparison: Comparison, required: float | None) -> None:
    if required and comparison.problems:
        raise UsageError(
            f"{comparison.problems[0]}, and {format_share(required)} of all calls is required. Leave the unreadable "
            "part out (--step, --rank) or record it again."
        )
    name, share = find_lowest_coverage(comparison)
    if required is not None and share < required:
        raise UsageError(
            f"only {format_share(share)} of the calls of {name} have a partner, and {format_share(required)} is "
            "required. The list of calls without a partner says which do not; a mapping file can pair them."
        )
    name, share = find_lowest_value_coverage(comparison)
    if required is not None and share < required:
        raise UsageError(
            f"only {format_share(share)} of the values of {name} were compared, and {format_share(required)} is "
            'required. "not compared" says why the others were not.'
        )


def _exit_code(comparison: Comparison) -> int:
    if comparison.verdict.kind in NO_ANSWER:
        return _NOT_COMPARED
    return _AGREE if comparison else _DIFFER
