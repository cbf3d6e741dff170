"""`tensorprobe compare-dirs`: two folders of .npy files, file by file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Format, Json, OldFormat, Processes
from tensorprobe.errors import UsageError
from tensorprobe.migrator.name_map import NamePair
from tensorprobe.migrator.npy_comparison import NpyDirOptions
from tensorprobe.migrator.npy_dir import (
    compare_with_progress,
    get_name_map_list_by_name,
    get_name_map_list_by_number,
    get_name_map_list_by_shape_edit_distance,
    warn_of_atol,
)
from tensorprobe.model.count import count_noun
from tensorprobe.model.npy_row import NpyDirComparison
from tensorprobe.regular_file import open_regular
from tensorprobe.report.npy_dir import check_csv_place, format_table, iter_json, write_csv

_AGREE, _DIFFER, _NOT_COMPARED = 0, 1, 2


class PairBy(str, Enum):
    """Which files belong together."""

    NAME = "name"
    NUMBER = "number"
    SHAPE = "shape"


_PAIRING: dict[PairBy, Callable[[Path, Path], list[NamePair]]] = {
    PairBy.NAME: get_name_map_list_by_name,
    PairBy.NUMBER: get_name_map_list_by_number,
    PairBy.SHAPE: get_name_map_list_by_shape_edit_distance,
}


Pairing = Annotated[
    PairBy,
    typer.Option("--by", help="Pair the same names, the same places in the order of numbers, or the same shapes."),
]
NameMap = Annotated[
    Path | None,
    typer.Option("--map", metavar="FILE", help="Pair what each line of this file names: reference.npy,candidate.npy"),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the table there, as CSV.")]


def compare_dirs(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="The folder that is right.")],
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="The folder that is in doubt.")],
    rtol: Annotated[float, typer.Option(help="|reference - candidate| <= atol + rtol * |candidate| is close.")] = 1e-4,
    atol: Annotated[float, typer.Option(help="See rtol.")] = 1e-4,
    equal_nan: Annotated[bool, typer.Option("--equal-nan", help="NaN on both sides is close.")] = False,
    pair_by: Pairing = PairBy.NAME,
    name_map: NameMap = None,
    compare_shape: Annotated[bool, typer.Option("--shape", help="Show the shapes too.")] = False,
    output_file: Output = None,
    as_json: Json = False,
    output_format: OldFormat = Format.TEXT,
    processes: Processes = None,
) -> None:
    """Compare two folders of .npy files, pair by pair: allclose, cosine similarity, mean and largest difference.

    tensorprobe compare-dirs torch_save ms_save                        the same names, subfolders too

    tensorprobe compare-dirs torch_save ms_save --by shape --shape     where names differ

    tensorprobe compare-dirs torch_save ms_save -o compare.csv && echo the same

    Exit codes: 0 all pairs are close, 1 some differ or have no partner, 2 they could not be compared.
    """
    options = NpyDirOptions(rtol, atol, equal_nan, processes)
    pairs = _choose_pairs(reference, candidate, pair_by, name_map)
    if output_file is not None:
        check_csv_place(output_file, (reference, candidate))
    comparison = compare_with_progress(reference, candidate, pairs, options)
    with suppress(BrokenPipeError):  # who has seen enough still gets the file and the exit code
        _print(comparison, as_json or output_format is Format.JSON, compare_shape)
    warn_of_atol(comparison)
    if output_file is not None:
        write_csv(output_file, comparison, compare_shape)
    raise typer.Exit(_exit_code(comparison))


def _print(comparison: NpyDirComparison, as_json: bool, has_shapes: bool) -> None:
    if as_json:
        for piece in iter_json(comparison):
            sys.stdout.write(piece)
    else:
        sys.stdout.write(format_table(comparison, has_shapes) + "\n")
    sys.stdout.flush()


def _choose_pairs(reference: Path, candidate: Path, pair_by: PairBy, name_map: Path | None) -> list[NamePair]:
    if name_map is None:
        return _PAIRING[pair_by](reference, candidate)
    if pair_by is not PairBy.NAME:
        raise UsageError(f"--map {name_map} and --by {pair_by.value} both pair the files. Give one of them.")
    return _read_name_map(name_map)


def _read_name_map(path: Path) -> list[NamePair]:
    """Two names a line; an empty one has no partner."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--map {path} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    pairs: list[NamePair] = []
    for number, line in enumerate(lines, 1):
        if not any(line):
            continue
        if len(line) != 2:
            raise UsageError(
                f"--map {path}, line {number}: {count_noun(len(line), 'name')}. Give two: reference.npy,candidate.npy"
            )
        pairs.append((line[0] or None, line[1] or None))
    return pairs


def _exit_code(comparison: NpyDirComparison) -> int:
    """Files that nobody can read hide nothing that is known to differ."""
    if comparison:
        return _AGREE
    is_known = any(row.status == "different" or not row.is_unreadable for row in comparison if row.status != "close")
    return _DIFFER if is_known else _NOT_COMPARED
