"""Folders of several runs in one dump_path are not one run: what would be read from them never happened.

A run has its id in every run.json. Dumps of msprobe, and those that an earlier version made, have none: where no folder
has one, they are one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprobe.errors import DumpError
from tensorprobe.store import stored_file
from tensorprobe.store.run_id import read_run_id, read_time

if TYPE_CHECKING:
    from tensorprobe.store.reader import RankDump

_SHOWN_FOLDERS = 6

Runs = dict[str | None, list["RankDump"]]


def refuse_mixture(path: Path, ranks: Iterable[RankDump]) -> None:
    """DumpError, with what belongs to which run, if these folders are of several."""
    runs: Runs = {}
    for rank in ranks:
        if not rank.is_run_readable:
            continue  # nobody knows whose it is; that is said elsewhere
        if rank.run or rank.dump_file or rank.debug_file:
            runs.setdefault(read_run_id(rank.run), []).append(rank)
    if len(runs) < 2 or _is_one_program(runs):
        return
    ordered = sorted(runs.items(), key=lambda run: _time_of(run[1]))
    lines = "\n".join(f"  {_describe(run_id, folders)}" for run_id, folders in ordered)
    raise DumpError(
        f"{stored_file.show(path)} holds folders of {len(runs)} runs, which cannot be read as one:\n{lines}\n"
        "Move the folders of the run that you do not want out of it, or name one step or rank (--step, --rank, or its "
        "folder) that belongs to one run alone."
    )


def refuse_part(path: Path, ranks: Iterable[RankDump]) -> None:
    """DumpError if a part of the run was moved aside, by one that was killed before it had replaced it."""
    for run_id in {read_run_id(rank.run) for rank in ranks}:
        replaced = path / f"replaced_{run_id or 'unknown'}"
        if stored_file.is_folder(replaced):
            shown = stored_file.show(path)
            raise DumpError(
                f"Only a part of the run is in {shown}: the rest is in {replaced.name}, because a run that was to "
                f"replace it ended too early. Put it together again with: tensorprobe recover {shown}"
            )


def _is_one_program(runs: Runs) -> bool:
    """The nodes of a distributed program that has no folder in common have an id each: put together by hand they are
    one run, if all is of the same number of ranks, and no rank and no host is there twice."""
    seen: set[str] = set()
    sizes = set()
    for folders in runs.values():
        names = {folder.folder.name for folder in folders}
        hosts = {f"host {folder.run.get('host')}" for folder in folders}
        sizes |= {folder.world_size for folder in folders}
        if seen & (names | hosts):
            return False
        seen |= names | hosts
    return len(sizes) == 1 and None not in sizes


def _describe(run_id: str | None, folders: Sequence[RankDump]) -> str:
    names = [folder.name for folder in folders]
    shown = ", ".join(names[:_SHOWN_FOLDERS])
    more = f" and {len(names) - _SHOWN_FOLDERS} more" if len(names) > _SHOWN_FOLDERS else ""
    run = f"run {run_id}" if run_id is not None else "a run without an id"
    return f"{run} ({_time_of(folders) or 'time unknown'}): {shown}{more}"


def _time_of(folders: Sequence[RankDump]) -> str:
    times = [time for folder in folders if (time := read_time(folder.run)) is not None]
    return f"{min(times):%Y-%m-%d %H:%M:%S %Z}" if times else ""
