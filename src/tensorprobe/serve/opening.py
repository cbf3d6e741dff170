"""What was named on the command line, as something to show: a saved comparison, two runs, or a single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.errors import UsageError
from tensorprobe.serve.shown import Shown, ShownComparison, ShownRun
from tensorprobe.serve.tensor_source import TensorSource
from tensorprobe.store.reader import open_dump

COMPARISON_FILE = "compare.json"
_PAGE_FILE = "report.html"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Part:
    """Which part of the runs is shown; None is all of it."""

    step: int | None = None
    rank: int | None = None
    has_truth: bool = False
    """Is a single run executed again in float64, to say where it loses its digits?"""


def open_shown(path: Path, candidate: Path | None, part: Part, progress: Progress) -> Shown:
    """`path` is a saved comparison or a run; with a candidate, it is the reference."""
    if candidate is not None:
        return _open_pair(path, candidate, part, progress)
    if path.name == COMPARISON_FILE or (path / COMPARISON_FILE).is_file():
        return _open_saved(path if path.name == COMPARISON_FILE else path / COMPARISON_FILE, part)
    if (path / _PAGE_FILE).is_file():
        raise UsageError(
            f"{path} has a {_PAGE_FILE}, which opens without a server, and no {COMPARISON_FILE}. Write one with: "
            "tensorprobe compare REFERENCE CANDIDATE -o DIR --files html,json"
        )
    return _open_run(path, part, progress)


def _open_pair(reference: Path, candidate: Path, part: Part, progress: Progress) -> Shown:
    from tensorprobe.compare.engine import compare_runs
    from tensorprobe.compare.option import CompareOptions
    from tensorprobe.report.page.comparison import build_comparison_page

    options = CompareOptions(step=part.step, rank=part.rank)
    return ShownComparison(build_comparison_page(compare_runs(reference, candidate, options, progress)))


def _open_saved(file: Path, part: Part) -> Shown:
    from tensorprobe.report.page_file import read_page

    if part.step is not None or part.rank is not None:
        raise UsageError(f"{file} is a comparison that was made: --step and --rank are for runs. Leave them out.")
    return ShownComparison(read_page(file), file.parent)


def _open_run(path: Path, part: Part, progress: Progress) -> Shown:
    from tensorprobe.replay import iter_truths
    from tensorprobe.report.page.run import build_run_page

    dump = open_dump(path).select(part.step, part.rank)
    truths = list(iter_truths(dump, reach=progress)) if part.has_truth else []
    return ShownRun(build_run_page(dump, truths), TensorSource(dump))
