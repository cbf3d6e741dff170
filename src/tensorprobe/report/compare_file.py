"""The files of a comparison: each appears whole, replaces an older one, and only its owner may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.compare.garbage import garbage_left_alone
from tensorprobe.compare.row import Block, count_block, count_rows, iter_blocks
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.report.compare_csv import write_csv
from tensorprobe.report.compare_json import write_json
from tensorprobe.report.compare_summary import Summary
from tensorprobe.report.compare_xlsx import check_xlsx, write_xlsx
from tensorprobe.report.page_file import check_page, write_page
from tensorprobe.store import disk, layout
from tensorprobe.store.reader import open_dump

CSV_FILE, HTML_FILE, XLSX_FILE, JSON_FILE = "compare.csv", "report.html", "compare.xlsx", "compare.json"
FILES = {"csv": CSV_FILE, "html": HTML_FILE, "xlsx": XLSX_FILE, "json": JSON_FILE}
"""What can be asked for, and how each is called."""
DEFAULT_FILES = ("csv", "html")
"""What a person opens."""

_CHECKS: dict[str, Callable[[], None]] = {HTML_FILE: check_page, XLSX_FILE: check_xlsx}

Progress = Callable[[int, int], None]
"""Called with how many rows were written and how many there are, in all files together."""


@dataclass(frozen=True)
class Written:
    """What lies in the folder now."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    """What did not fit."""


def read_files(text: str | None) -> tuple[str, ...]:
    """`csv,html` as the names of FILES, each once; those of a person if nothing is asked for."""
    if text is None:
        return DEFAULT_FILES
    asked = [word.strip().lower() for word in text.split(",")]
    unknown = next((word for word in asked if word not in FILES), None)
    if unknown is not None:
        raise UsageError(f"--files {text!r}: {unknown!r} is not one of {', '.join(FILES)}. Give some: --files csv,html")
    return tuple(name for name in FILES if name in asked)


@contextmanager
def prepared_folder(folder: Path, dumps: tuple[Path, ...], files: Sequence[str]) -> Iterator[None]:
    """Around the long work: is refused at once if the files, by their names, could not be written there; folders that
    were made for them go again if they stay empty."""
    for name in files:
        _CHECKS.get(name, lambda: None)()
    _check_place(folder, dumps, files)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        layout.make_folder(folder)
        with disk.open_whole(folder / ".writable"):
            pass
        (folder / ".writable").unlink()
    except OSError as error:
        raise UsageError(f"-o {folder}: cannot be written to ({error.strerror or error}).") from error
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # something is in it
                path.rmdir()


def write_files(
    folder: Path, summary: Summary, files: Sequence[str] = DEFAULT_FILES, progress: Progress | None = None
) -> Written:
    """The files that are asked for; UsageError when one cannot be written, which is then left out. The rows are made
    once for all of them."""
    notes: list[str] = []
    with garbage_left_alone():
        laid_out = _LaidOut(summary, folder, notes)
        blocks = _CountedBlocks(summary, len(files), progress)
        for name in FILES:
            if name in files:
                _write_file(folder / FILES[name], partial(getattr(laid_out, f"write_{name}"), blocks))
    return Written(tuple(folder / FILES[name] for name in FILES if name in files), tuple(notes))


def _write_file(path: Path, write: Callable[[BinaryIO], None]) -> None:
    try:
        with disk.open_whole(path) as file:
            write(file)
    except OSError as error:
        raise UsageError(f"{path} could not be written ({error.strerror or error}).") from error


class _LaidOut:
    """One comparison in all its forms."""

    def __init__(self, summary: Summary, folder: Path, notes: list[str]) -> None:
        self._summary, self._folder, self._notes = summary, folder, notes
        self._head: dict[str, Any] | None = None

    def write_csv(self, blocks: Iterable[Block], file: BinaryIO) -> None:
        write_csv(file, blocks)

    def write_html(self, blocks: Iterable[Block], file: BinaryIO) -> None:
        from tensorprobe.report.page.comparison import add_rows

        write_page(file, add_rows(self._page_head(), blocks))

    def write_xlsx(self, blocks: Iterable[Block], file: BinaryIO) -> None:
        left_out = write_xlsx(file, self._summary, blocks, self._folder)
        if left_out:
            self._notes.append(f"{XLSX_FILE}: {left_out}")

    def write_json(self, blocks: Iterable[Block], file: BinaryIO) -> None:
        write_json(file, self._summary, blocks, {"page": self._page_head()})

    def _page_head(self) -> dict[str, Any]:
        from tensorprobe.report.page.comparison import build_page_head

        if self._head is None:
            self._head = build_page_head(self._summary.comparison, self._summary)
        return self._head


class _CountedBlocks:
    """The rows, made when the first file asks for them, and kept for the others."""

    def __init__(self, summary: Summary, file_count: int, progress: Progress | None) -> None:
        self._made = iter_blocks(summary.comparison)
        self._kept: list[Block] = []
        self._is_kept = file_count > 1
        self._progress = progress
        self._total = file_count * count_rows(summary.comparison)
        self._done = 0

    def __iter__(self) -> Iterator[Block]:
        if self._kept:
            yield from map(self._count, self._kept)
            return
        for block in self._made:
            if self._is_kept:
                self._kept.append(block)
            yield self._count(block)

    def _count(self, block: Block) -> Block:
        self._done += count_block(block)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return block


def _check_place(folder: Path, dumps: tuple[Path, ...], files: Sequence[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder} is a file. Give a folder; {', '.join(files)} are written into it.")
    resolved = folder.resolve()
    roots = [(dump, dump.resolve().parent if dump.is_file() else dump.resolve()) for dump in dumps]
    inside = [dump for dump, root in roots if resolved.is_relative_to(root)]
    if inside or _is_dump(folder):
        raise UsageError(f"-o {folder} lies in the dump {inside[0] if inside else folder}. Give a folder of its own.")


def _is_dump(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        open_dump(folder)
    except DumpError:
        return False
    return True
