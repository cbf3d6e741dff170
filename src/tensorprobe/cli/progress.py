"""Progress of long work: on stderr, and only if somebody is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tensorprobe.report.console import make_console

Advance = Callable[[], None]
Reach = Callable[[int, int], None]
"""Called with how much is done and how much there is."""

_UPDATE_EVERY = 200
_REACH_EVERY = 10


@contextmanager
def progress_bar(description: str, *, is_long: bool, every: int = _UPDATE_EVERY) -> Iterator[Advance]:
    """A count that goes away when the work is done; the function it gives is called once for each piece of work."""
    if not is_long or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}  {task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=make_console(to_stderr=True), transient=True) as progress:
        yield _Counter(progress, progress.add_task(description, total=None), every)


@contextmanager
def total_progress_bar(description: str) -> Iterator[Reach]:
    """A bar for work whose size is known; the function it gives is called with what is done and what there is."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=make_console(to_stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield _Bar(progress, task)


class _Bar:
    """Is told of every piece of work, of one or of thousands at a time, and draws now and then."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._drawn = 0

    def __call__(self, done: int, total: int) -> None:
        if done == total or not 0 <= done - self._drawn < _REACH_EVERY:
            self._drawn = done
            self._progress.update(self._task, completed=done, total=total)


class _Counter:
    """Tells the bar only now and then: a record takes less time than a redraw."""

    def __init__(self, progress: Progress, task: TaskID, every: int) -> None:
        self._progress, self._task, self._every = progress, task, every
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count % self._every == 0:
            self._progress.update(self._task, completed=self._count)
