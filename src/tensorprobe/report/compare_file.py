"""The files of a comparison: each appears whole, replaces an older one, and only its owner may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import Row, count_rows, iter_rows
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.report.compare_csv import write_csv
from tensorprobe.report.compare_json import write_json
from tensorprobe.report.compare_xlsx import check_xlsx, write_xlsx
from tensorprobe.store import disk, layout
from tensorprobe.store.reader import open_dump

CSV_FILE, XLSX_FILE, JSON_FILE = "compare.csv", "compare.xlsx", "compare.json"
FILES = (CSV_FILE, XLSX_FILE, JSON_FILE)

Progress = Callable[[int, int], None]
"""Called with how many rows were written and how many there are, in all files together."""


@dataclass(frozen=True)
class Written:
    """What lies in the folder now."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    """What did not fit."""


@contextmanager
def prepared_folder(folder: Path, dumps: tuple[Path, ...], files: Sequence[str] = FILES) -> Iterator[None]:
    """Around the long work: is refused at once if the files could not be written there; folders that were made for
    them go again if they stay empty."""
    check_xlsx()
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


def write_files(folder: Path, comparison: Comparison, progress: Progress | None = None) -> Written:
    """compare.csv, compare.xlsx and compare.json; UsageError when one cannot be written, which is then left out."""
    rows = _CountedRows(comparison, progress)
    notes: list[str] = []

    def write_workbook(file: BinaryIO) -> None:
        left_out = write_xlsx(file, comparison, rows, folder)
        if left_out:
            notes.append(f"{XLSX_FILE}: {left_out}")

    writers: dict[str, Callable[[BinaryIO], None]] = {
        CSV_FILE: lambda file: write_csv(file, rows),
        XLSX_FILE: write_workbook,
        JSON_FILE: lambda file: write_json(file, comparison, rows),
    }
    for name, write in writers.items():
        try:
            with disk.open_whole(folder / name) as file:
                write(file)
        except OSError as error:
            raise UsageError(f"{folder / name} could not be written ({error.strerror or error}).") from error
    return Written(tuple(folder / name for name in FILES), tuple(notes))


class _CountedRows:
    """The rows, made anew for each file, so that they are never all in memory."""

    def __init__(self, comparison: Comparison, progress: Progress | None) -> None:
        self._comparison = comparison
        self._progress = progress
        self._total = len(FILES) * count_rows(comparison)
        self._done = 0

    def __iter__(self) -> Iterator[Row]:
        for row in iter_rows(self._comparison):
            yield row
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)


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
