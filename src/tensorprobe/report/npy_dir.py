"""The rows of two folders of .npy files as TroubleShooter's table, as CSV, and as JSON.

The titles of the columns and how numbers look are those of its manual. A table goes whole to a terminal and to a pipe.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensorprobe._version import __version__
from tensorprobe.errors import UsageError
from tensorprobe.model.npy_row import OTHER_SHAPE, NpyDirComparison, NpyRow
from tensorprobe.report.cell import defuse
from tensorprobe.report.escape import clean
from tensorprobe.report.json import encode
from tensorprobe.store import disk, layout

TITLE = "The list of comparison results"
_NAMES = ("orig array name", "target array name")
_SHAPES = ("shape of orig", "shape of target")
_NUMBERS = ("result of allclose", "ratio of allclose", "cosine similarity", "mean & max diffs")
_ABSENT = "nan"


def name_columns(has_shapes: bool) -> tuple[str, ...]:
    """The titles of the columns."""
    return (*_NAMES, *(_SHAPES if has_shapes else ()), *_NUMBERS)


def build_cells(row: NpyRow, has_shapes: bool) -> tuple[str, ...]:
    """One row as text."""
    shapes = (_show_shape(row.reference_shape), _show_shape(row.candidate_shape)) if has_shapes else ()
    return (clean(str(row.reference_name)), clean(str(row.candidate_name)), *shapes, *_show_numbers(row))


def format_table(comparison: NpyDirComparison, has_shapes: bool) -> str:
    """The table with its title."""
    try:
        from prettytable import PrettyTable
    except ImportError:
        raise UsageError('the table needs prettytable: pip install "tensorprobe[compare]"') from None
    table = PrettyTable(name_columns(has_shapes))
    table.title = TITLE
    table.add_rows([list(build_cells(row, has_shapes)) for row in comparison])
    return table.get_string()


def write_csv(path: Path, comparison: NpyDirComparison, has_shapes: bool) -> None:
    """The same cells; an older file is replaced whole. Text that a spreadsheet would take for a formula stays text."""
    try:
        layout.make_folder(path.parent)
        with disk.open_whole(path) as file:
            file.write(_format_csv(comparison, has_shapes).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"output_file {path} could not be written ({error.strerror or error}).") from error


def check_csv_place(path: Path, folders: Iterable[Path]) -> None:
    """Before the long work: refuse what could not be written, or would be written over what is compared."""
    if path.is_dir():
        raise UsageError(f"output_file {path} is a folder. Give a file, such as {path / 'compare.csv'}.")
    is_inside = any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)
    if is_inside and path.suffix == ".npy":
        raise UsageError(f"output_file {path} would lie among the files that are compared. Give another name.")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise UsageError(f"output_file {path}: {nearest} is no folder.")


def iter_json(comparison: NpyDirComparison) -> Iterator[str]:
    """Strict JSON, piece by piece: one row a line."""
    head = {
        "tensorprobe": __version__,
        "reference": comparison.reference,
        "candidate": comparison.candidate,
        "agree": bool(comparison),
    }
    yield "{" + ",\n".join(f"{encode(key)}: {encode(value)}" for key, value in head.items()) + ',\n"rows": ['
    separator = "\n"
    for row in comparison:
        yield separator + encode(dataclasses.asdict(row))
        separator = ",\n"
    yield "\n]}\n"


def _format_csv(comparison: NpyDirComparison, has_shapes: bool) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(name_columns(has_shapes))
    for row in comparison:
        writer.writerow(map(defuse, build_cells(row, has_shapes)))
    return text.getvalue()


def _show_shape(shape: tuple[int, ...] | None) -> str:
    return str(shape)


def _show_numbers(row: NpyRow) -> tuple[str, str, str, str]:
    words = _describe(row)
    if words is not None:
        return words, _ABSENT, _ABSENT, f"{_ABSENT}, {_ABSENT}"
    share = math.nan if row.allclose_share is None else row.allclose_share
    numbers = [math.nan if number is None else number for number in (row.mean_abs_error, row.max_abs_error)]
    mean, largest = (_show_number(number) for number in numbers)
    return str(row.allclose), f"{share:.2%}", _show_number(row.cosine), f"{mean}, {largest}"


def _show_number(number: float | None) -> str:
    return _ABSENT if number is None else f"{number:.5f}"


def _describe(row: NpyRow) -> str | None:
    """Why there are no numbers."""
    problems = [
        f"{side} {clean(problem)}"
        for side, problem in (("orig", row.reference_problem), ("target", row.candidate_problem))
        if problem is not None
    ]
    if row.candidate_name is None:
        return "; ".join(["only in orig", *problems])
    if row.reference_name is None:
        return "; ".join(["only in target", *problems])
    if problems:
        return "; ".join(problems)
    if row.problem == OTHER_SHAPE:
        return "Shape is inconsistent"
    return None if row.problem is None else clean(row.problem)
