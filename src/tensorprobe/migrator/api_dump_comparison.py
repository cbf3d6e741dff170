"""What `api_dump_compare` does: two api_dumps through `compare`, printed as TroubleShooter's tables and our verdict."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from tensorprobe.capture.message import show_messages
from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import Comparison
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.report.api_dump import FILES, FORWARD_FILE, build_tables, format_table, write_tables
from tensorprobe.report.compare_text import print_comparison
from tensorprobe.report.console import make_console
from tensorprobe.store import disk, layout
from tensorprobe.store.reader import open_dump

logger = logging.getLogger("tensorprobe")


def compare_api_dumps(origin_path: Any, target_path: Any, output_path: Any) -> Comparison:
    """Refuse what cannot work, compare, write the files, and print."""
    origin, target = _read_path("origin_path", origin_path), _read_path("target_path", target_path)
    frameworks = (_recognise(origin), _recognise(target))
    folder = None if output_path is None else _read_path("output_path", output_path)
    if folder is not None:
        _prepare_folder(folder, (origin, target))
    comparison = compare_runs(origin, target, CompareOptions())
    tables = build_tables(comparison, frameworks)
    # The files first: nobody may be reading what is printed (`| head`), and it may not be possible to draw it.
    written = [] if folder is None else write_tables(folder, comparison, tables)
    for table in tables:
        if table.rows:
            print(format_table(table))
    where = "output_path=… writes all of them" if folder is None else f"see {folder / FORWARD_FILE}"
    print_comparison(make_console(), comparison, where_more=where)
    sys.stdout.flush()
    if written:
        show_messages()
        logger.info("written: %s", ", ".join(map(str, written)))
    return comparison


def _read_path(name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise UsageError(f"api_dump_compare: {name} {value!r} is not a path: give a string or a pathlib.Path")
    return Path(value)


def _recognise(path: Path) -> str:
    """The framework of a dump, by the names of its files; DumpError for what is no api_dump."""
    names = {rank.api_dump.framework for rank in open_dump(path).ranks() if rank.api_dump is not None}
    if not names:
        raise DumpError(
            f"{path} is a dump, but not one of api_dump: compare it with tensorprobe.compare, or give the output_path "
            "of api_dump_init."
        )
    return " and ".join(sorted(names))


def _prepare_folder(folder: Path, dumps: tuple[Path, Path]) -> None:
    """Before the long work: refuse what could not be written to."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output_path {folder} is a file. Give a folder; {', '.join(FILES)} are written into it.")
    for dump in dumps:
        rank_folders = [rank.folder.resolve() for rank in open_dump(dump).ranks()]
        if any(folder.resolve().is_relative_to(rank) for rank in rank_folders):
            raise UsageError(f"output_path {folder} lies in the dump {dump}. Give a folder of its own.")
    try:
        layout.make_folder(folder)
        with disk.open_whole(folder / ".writable"):
            pass
        (folder / ".writable").unlink()
    except OSError as error:
        raise UsageError(f"output_path {folder} cannot be written to ({error.strerror or error}).") from error
