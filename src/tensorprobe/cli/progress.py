"""Progress of long work: on stderr, and only if somebody is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

Advance = Callable[[], None]

_UPDATE_EVERY = 200


@contextmanager
def progress_bar(description: str, total: int | None, is_long: bool) -> Iterator[Advance]:
    """A bar that goes when the work is done; `total` None: only a count."""
    if not is_long or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield _Counter(progress, task, 1 if total is None else _UPDATE_EVERY)


class _Counter:
    """Tells the bar only now and then: a record takes less time than a redraw."""

    def __init__(self, progress: Progress, task: object, every: int) -> None:
        self._progress, self._task, self._every = progress, task, every
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count % self._every == 0:
            self._progress.advance(self._task, self._every)  # type: ignore[arg-type]
