"""What was named on the command line, as something to show: a saved comparison, two runs, or a single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.errors import UsageError
from tensorprobe.serve.shown import Shown, ShownComparison, ShownRun
from tensorprobe.serve.tensor_source import TensorSource
from tensorprobe.store.reader import open_dump

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
    from tensorprobe.report.page.saved import find_saved

    if candidate is not None:
        return _open_pair(path, candidate, part, progress)
    saved = find_saved(path)
    if saved is not None:
        return _open_saved(saved, part)
    return _open_run(path, part, progress)


def _open_pair(reference: Path, candidate: Path, part: Part, progress: Progress) -> Shown:
    from tensorprobe.compare.engine import compare_runs
    from tensorprobe.compare.option import CompareOptions
    from tensorprobe.report.page.comparison import build_comparison_page

    options = CompareOptions(step=part.step, rank=part.rank, own_errors=True)
    return ShownComparison(build_comparison_page(compare_runs(reference, candidate, options, progress)))


def _open_saved(file: Path, part: Part) -> Shown:
    if part.step is not None or part.rank is not None:
        raise UsageError(f"{file} is a comparison that was made: --step and --rank are for runs. Leave them out.")
    from tensorprobe.report.page.saved import build_saved_page

    return ShownComparison(build_saved_page(file), file.parent)


def _open_run(path: Path, part: Part, progress: Progress) -> Shown:
    from tensorprobe.replay import iter_truths
    from tensorprobe.report.page.run import build_run_page

    dump = open_dump(path).select(part.step, part.rank)
    truths = list(iter_truths(dump, reach=progress)) if part.has_truth else []
    return ShownRun(build_run_page(dump, truths), TensorSource(dump))
