"""`compare_npy_dir` and the functions that pair the files of two folders, with TroubleShooter's names and arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.migrator.attention import call_attention

if TYPE_CHECKING:
    from tensorprobe.migrator.name_map import NamePair
    from tensorprobe.model.npy_row import NpyDirComparison

Folder = str | os.PathLike[str]

_NAMES_SHOWN = 3


def compare_npy_dir(
    orig_dir: Folder,
    target_dir: Folder,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    *,
    name_map_list: Sequence[NamePair] | None = None,
    compare_shape: bool = False,
    output_file: Folder | None = None,
    num_processes: int | None = None,
) -> NpyDirComparison:
    """Compare the .npy files of two folders, and print a table; with `output_file` the table is a CSV file as well.

    Files with the same name are paired, or those that `name_map_list` pairs: [("a.npy", "b.npy"), ("c.npy", None)].
    The rows are returned; they are true when every file has a partner that is close to it.
    """
    from tensorprobe.migrator.npy_comparison import NpyDirOptions
    from tensorprobe.report.npy_dir import check_csv_place, format_table, write_csv

    options = NpyDirOptions(rtol, atol, equal_nan, num_processes)
    if output_file is not None and not isinstance(output_file, (str, os.PathLike)):
        raise UsageError(f"output_file is {output_file!r}. Give the path of a file, such as compare.csv.")
    csv_path = None if output_file is None else Path(output_file)
    if csv_path is not None:
        check_csv_place(csv_path, [check_folder("orig_dir", orig_dir), check_folder("target_dir", target_dir)])
    comparison = compare_with_progress(orig_dir, target_dir, name_map_list, options)
    print(format_table(comparison, compare_shape), flush=True)
    warn_of_atol(comparison)
    if csv_path is not None:
        write_csv(csv_path, comparison, compare_shape)
    return comparison


def compare_with_progress(
    orig_dir: Folder, target_dir: Folder, name_map_list: Sequence[NamePair] | None, options: Any
) -> NpyDirComparison:
    """The comparison with what is said on stderr: which folders, and how far it is."""
    from tensorprobe.migrator.npy_comparison import compare_folders

    folders = check_folder("orig_dir", orig_dir), check_folder("target_dir", target_dir)
    pairs = get_name_map_list_by_name(*folders) if name_map_list is None else _check_pairs(name_map_list)
    _check_some_pair(pairs, folders)
    call_attention(f"The compare directory information:\n The orig dir: {orig_dir} \n The target dir: {target_dir}")
    with _progress_bar(len(pairs)) as advance:
        return compare_folders(*folders, pairs, options, advance)


def get_name_map_list_by_name(orig_dir: Folder, target_dir: Folder) -> list[NamePair]:
    """Files with the same name. A file without a partner is paired with None.

    `0_input.npy` and MindSpore's spelling of it, `input_float32_0.npy`, are the same name.
    """
    from tensorprobe.migrator.name_map import pair_by_name

    pairs = pair_by_name(*_find_both(orig_dir, target_dir))
    _warn_of_unpaired(pairs)
    return pairs


def get_name_map_list_by_number(
    orig_dir: Folder, target_dir: Folder, sort_key: Callable[[str], Any] | None = None
) -> list[NamePair]:
    """The first file with the first, the second with the second, in the order of the numbers in their names.

    `sort_key` takes a name and gives what it is ordered by.
    """
    from tensorprobe.migrator.name_map import number_key, pair_by_number

    pairs = pair_by_number(*_find_both(orig_dir, target_dir), sort_key or number_key)
    _warn_of_unpaired(pairs)
    return pairs


def get_name_map_list_by_shape_edit_distance(
    orig_dir: Folder, target_dir: Folder, *, del_cost: float = 1, ins_cost: float = 1, rep_cost: float = 5
) -> list[NamePair]:
    """Files in the order of their numbers, aligned by their shapes: the fewest are left out, at these costs."""
    from tensorprobe.migrator.edit_distance import EditCosts
    from tensorprobe.migrator.name_map import pair_by_shape
    from tensorprobe.migrator.npy_comparison import read_shapes

    costs = EditCosts(del_cost, ins_cost, rep_cost)
    names = _find_both(orig_dir, target_dir)
    shapes = [read_shapes(Path(folder), found) for folder, found in zip((orig_dir, target_dir), names, strict=True)]
    pairs = pair_by_shape(shapes[0], shapes[1], costs)
    _warn_of_unpaired(pairs)
    return pairs


def check_folder(argument: str, folder: Folder) -> Path:
    """The folder, if there is one."""
    if not isinstance(folder, (str, os.PathLike)):
        raise UsageError(f"{argument} is {folder!r}. Give the path of a folder of .npy files.")
    path = Path(folder)
    if not path.exists():
        raise UsageError(f"{argument} {path} does not exist. Give a folder of .npy files.")
    if not path.is_dir():
        raise UsageError(f"{argument} {path} is a file. Give the folder that it lies in.")
    return path


def warn_of_atol(comparison: NpyDirComparison) -> None:
    """numpy.allclose takes any two gradients of 1e-8 for equal: say which pairs that concerns."""
    from tensorprobe.migrator.npy_comparison import iter_passing_by_atol

    rows = list(iter_passing_by_atol(comparison))
    if rows:
        names = _list_names([row.reference_name for row in rows])
        call_attention(f"Close only because all values are below atol, and taken as different: {names}.")


def _find_both(orig_dir: Folder, target_dir: Folder) -> tuple[list[str], list[str]]:
    return _find("orig_dir", orig_dir), _find("target_dir", target_dir)


def _find(argument: str, folder: Folder) -> list[str]:
    from tensorprobe.migrator.name_map import find_names

    path = check_folder(argument, folder)
    names = find_names(path)
    if not names:
        raise UsageError(f"{argument} {path} holds no .npy file.{_hint(path)}")
    return names


def _hint(path: Path) -> str:
    """What the folder may be instead."""
    if next(path.rglob("dump.json"), None) is not None:
        return " It is a dump: compare it with `tensorprobe compare`."
    if next(path.rglob("*.pt"), None) is not None:
        return " It holds .pt files: convert them first with `tensorprobe convert`."
    return ""


def _check_pairs(name_map_list: Any) -> list[NamePair]:
    """Names without .npy get it."""
    pairs: list[NamePair] = []
    for pair in list(name_map_list):
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or not all(name is None or (isinstance(name, str) and name) for name in pair):
            raise UsageError(
                f'name_map_list holds {pair!r}. Give pairs of names: [("a.npy", "b.npy"), ("c.npy", None)].'
            )
        names = [name if name is None or name.endswith(".npy") else f"{name}.npy" for name in pair]
        if names != [None, None]:
            pairs.append((names[0], names[1]))
    return pairs


def _check_some_pair(pairs: list[NamePair], folders: tuple[Path, Path]) -> None:
    if any(None not in pair for pair in pairs):
        return
    sides = [[pair[side] for pair in pairs if pair[side] is not None] for side in (0, 1)]
    raise UsageError(
        f"no file of {folders[0]} ({_list_names(sides[0])}) has a partner in {folders[1]} ({_list_names(sides[1])}). "
        "Pair them with name_map_list, for example by get_name_map_list_by_number or …_by_shape_edit_distance."
    )


def _warn_of_unpaired(pairs: list[NamePair]) -> None:
    lone = [first or second for first, second in pairs if first is None or second is None]
    if lone:
        words = "1 file has" if len(lone) == 1 else f"{len(lone)} files have"
        call_attention(f"{words} no partner: {_list_names(lone)}. A name_map_list can pair them.")


def _list_names(names: Sequence[str | None]) -> str:
    shown = [clean(str(name)) for name in names[:_NAMES_SHOWN]]
    return ", ".join([*shown, "…"] if len(names) > _NAMES_SHOWN else shown) or "nothing"


@contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[], Any]]:
    try:
        from tqdm import tqdm
    except ImportError:
        raise UsageError('the progress bar needs tqdm: pip install "tensorprobe[compare]"') from None
    with tqdm(total=total) as bar:
        yield partial(bar.update, 1)
