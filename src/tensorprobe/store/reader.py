"""A run on disk, read.

    dump = open_dump("dump_path")
    for step in dump.steps:
        for rank in step.ranks:
            for record in rank.records():
                for slot in record.slots(): ...

A dump may come from someone else: nothing in it is unpickled, and no name and no link in it is followed out of the
folder that was named. Records are read one at a time; the files are first touched when they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.model.url import show_location
from tensorprobe.store import journal, layout, side_file, stored_file
from tensorprobe.store.api_dump_layout import ApiDumpLayout, find_layout
from tensorprobe.store.api_dump_reader import InfoFile, stack_reading
from tensorprobe.store.container import member_path
from tensorprobe.store.foreign import ForeignFile, ForeignStep, find_foreign
from tensorprobe.store.mixture import refuse_mixture, refuse_part
from tensorprobe.store.own_name import RANK, STEP
from tensorprobe.store.record_file import RecordFile
from tensorprobe.store.run_id import REPLACED
from tensorprobe.store.slot import Slot, iter_gradient_slots, iter_record_slots, iter_slots

_TYPES = {layout.DUMP_FILE: journal.RECORD_TYPES, layout.DEBUG_FILE: journal.SAVED_TYPES}


@dataclass(slots=True)  # not frozen: that makes each take several times as long, and there are many
class Record:
    """One entry of dump.json: a call of an API or a module, or the gradients of a module's parameters."""

    name: str
    fields: dict[str, Any]

    @property
    def is_parameters_grad(self) -> bool:
        if PARAMETERS_GRAD not in self.name:
            return False
        stem, _, end = self.name.rpartition(".")
        # msprobe writes parameters_grad.0
        return end == PARAMETERS_GRAD or (end.isdecimal() and stem.endswith(f".{PARAMETERS_GRAD}"))

    def slots(self) -> Iterator[Slot]:
        """Its tensors and plain arguments."""
        return iter_gradient_slots(self.fields) if self.is_parameters_grad else iter_record_slots(self.fields)


@dataclass(frozen=True)
class SavedValue:
    """One entry of debug.json: what a single `save` was given."""

    name: str
    tree: Any

    def slots(self) -> Iterator[Slot]:
        """Its leaves; the name of a plain tensor's slot is empty."""
        return iter_slots(self.tree, "")


@dataclass(frozen=True)
class RankDump:
    """What one process recorded in one step."""

    folder: Path
    root: Path
    """What was opened; nothing outside of it is read."""
    step: int | None
    rank: int | None
    """None outside distributed runs."""
    dump_file: RecordFile | InfoFile | ForeignFile | None
    debug_file: RecordFile | ForeignFile | None
    api_dump: ApiDumpLayout | None = None
    """The names of its files, where api_dump wrote it."""

    @property
    def name(self) -> str:
        """`step0/rank3`"""
        return self.folder.name if self.step is None else f"step{self.step}/{self.folder.name}"

    def is_rank(self, number: int | None) -> bool:
        """None means any; outside distributed runs the only process counts as rank 0."""
        return number is None or number == (self.rank or 0)

    @property
    def header(self) -> Mapping[str, Any]:
        """task, level, framework."""
        file = self.dump_file or self.debug_file
        return file.header if file else {}

    @property
    def is_complete(self) -> bool:
        """False while the run writes, and after it was killed."""
        return all(file.is_complete for file in self._files) and self.run.get("complete") is not False

    @property
    def is_begun(self) -> bool:
        """A run has been here, even if it was killed before it recorded anything."""
        return side_file.find_file(self.folder, layout.RUN_FILE, self.root) is not None

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, in words."""
        found = [problem for file in self._files for problem in file.problems]
        if not self._files:
            found.append("neither dump.json nor debug.json: nothing was recorded here")
        return (*found, *self._parents.problems, *self._stacks.problems, *self._run.problems)

    @property
    def record_count(self) -> int:
        return len(self.dump_file) if self.dump_file else 0

    def records(self) -> Iterator[Record]:
        """The calls in the order in which they ended: a module follows what it contains."""
        if self.dump_file:
            for name, fields in self.dump_file.items():
                yield Record(name, fields)

    def record(self, name: str) -> Record:
        """One call by its name; KeyError when it was not recorded."""
        if not self.dump_file:
            raise KeyError(name)
        return Record(name, self.dump_file.get(name))

    def place(self, name: str) -> int | None:
        """How many records were written before this one, also those that were written once more later."""
        return self.dump_file.place(name) if isinstance(self.dump_file, RecordFile) else None

    def saved_values(self) -> Iterator[SavedValue]:
        """What `save` wrote."""
        if self.debug_file:
            for name, tree in self.debug_file.items():
                yield SavedValue(name, tree)

    def forget(self) -> None:
        """Frees the memory of all that is long in it; what is asked for again is read again."""
        for file in self._files:
            if isinstance(file, RecordFile):
                file.forget()
        for name in ("_parents", "_stacks"):
            self.__dict__.pop(name, None)

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Each record and the module call that contains it; empty at L1."""
        return self._parents.content

    def stack(self, name: str) -> tuple[str, ...]:
        """Where a record was called, innermost first; empty when that is not known."""
        return self._stacks.content.get(name, ())

    @property
    def run(self) -> Mapping[str, Any]:
        """run.json; empty when there is none."""
        return self._run.content

    @property
    def world_size(self) -> int | None:
        """Of how many processes its program was; None where that is not known."""
        environment = self.run.get("environment")
        size = environment.get("WORLD_SIZE") if isinstance(environment, dict) else None
        return int(size) if isinstance(size, str) and size.isdecimal() and self.rank is not None else None

    @property
    def is_run_readable(self) -> bool:
        """False if run.json cannot be read; True if there is none."""
        return not self._run.problems

    def tensor_path(self, data_name: str) -> Path:
        """The file of a tensor, if it lies in this dump. It need not exist."""
        if isinstance(self.dump_file or self.debug_file, ForeignFile):
            return member_path(self.folder, data_name)
        if not data_name or data_name in (".", "..") or set("/\\\0") & set(data_name):
            raise DumpError(f"{self.folder}: the tensor file {data_name!r} is not a plain file name; it is not opened.")
        path = self.folder / self.tensor_folder / data_name
        try:
            # A plain name leaves its folder only by being a link itself.
            is_inside = path.resolve().is_relative_to(self.root) if path.is_symlink() else self._has_own_tensor_folder
        except (OSError, RuntimeError, ValueError) as error:  # too long, a link to itself, half of a surrogate pair
            raise DumpError(f"{self.folder}: the tensor file {data_name!r} cannot be looked up ({error}).") from error
        if not is_inside:
            raise DumpError(f"{path} leads out of the dump, to {path.resolve()}. Replace the link by the file itself.")
        return path

    @property
    def tensor_folder(self) -> str:
        """What the folder of its tensor files is called."""
        return layout.TENSOR_FOLDER if self.api_dump is None else self.api_dump.tensor_folder

    @cached_property
    def _has_own_tensor_folder(self) -> bool:
        return (self.folder / self.tensor_folder).resolve().is_relative_to(self.root)

    @property
    def _files(self) -> tuple[RecordFile | InfoFile | ForeignFile, ...]:
        return tuple(file for file in (self.dump_file, self.debug_file) if file)

    @cached_property
    def _parents(self) -> side_file.SideFile[dict[str, str | None]]:
        return side_file.read_noting(side_file.read_parents, self.folder, self.root)

    @cached_property
    def _stacks(self) -> side_file.SideFile[dict[str, side_file.Frames]]:
        read = side_file.read_stacks if self.api_dump is None else stack_reading(self.api_dump)
        return side_file.read_noting(read, self.folder, self.root)

    @cached_property
    def _run(self) -> side_file.SideFile[dict[str, Any]]:
        return side_file.read_noting(side_file.read_run, self.folder, self.root)


@dataclass(frozen=True)
class StepDump:
    """One step of all processes."""

    number: int | None
    folder: Path
    ranks: tuple[RankDump, ...]


@dataclass(frozen=True)
class Dump:
    """A run, or the part of one that was named."""

    path: Path
    steps: tuple[StepDump, ...]

    def ranks(self) -> Iterator[RankDump]:
        """All steps and ranks, in order."""
        for step in self.steps:
            yield from step.ranks

    def select(self, step: int | None = None, rank: int | None = None) -> Dump:
        """Only one step, or one rank; DumpError, with what there is, when it was not recorded, or when what is left is
        not of one run."""
        steps = tuple(
            StepDump(found.number, found.folder, tuple(one for one in found.ranks if one.is_rank(rank)))
            for found in self.steps
            if step is None or found.number == step
        )
        if not any(found.ranks for found in steps):
            asked = {"step": step, "rank": rank}
            wanted = " ".join(f"{word} {number}" for word, number in asked.items() if number is not None)
            there = ", ".join(one.name for one in self.ranks())
            raise DumpError(f"{stored_file.show(self.path)} has no {wanted}. It has: {there}.")
        selected = Dump(self.path, steps)
        stored_file.bring_all(one.folder / layout.RUN_FILE for one in selected.ranks())
        refuse_mixture(self.path, selected.ranks())
        if step is None:
            refuse_part(self.path, selected.ranks())
        return selected


def open_dump(path: str | Path) -> Dump:
    """A dump_path, the folder of a step or of a rank in it, or a dump.json or debug.json, whole or .part; on this
    machine, or the address of one in a store."""
    try:
        return _open_path(stored_file.locate(path))
    except OSError as error:
        raise DumpError(f"{show_location(path)} cannot be read ({error}).") from error


def _open_path(path: Path) -> Dump:
    foreign = find_foreign(path)
    if foreign:
        return Dump(path, _group_steps(path, [_open_foreign(found, path) for found in foreign]))
    if not stored_file.is_folder(path):
        if stored_file.is_file(path):
            return _open_file(path)
        shown = stored_file.show(path)
        raise DumpError(f"{shown} does not exist. Give the dump_path of a run, or a folder in it.")
    dump = Dump(path, _find_steps(path, path.resolve()))
    if not any(rank.dump_file or rank.debug_file or rank.is_begun for rank in dump.ranks()):
        found = ", ".join(stored_file.names(path)[:8]) or "nothing"
        raise DumpError(
            f"{stored_file.show(path)} holds no dump: there is no step0/rank/dump.json or the like in it, but "
            f"{found}.{_hint(path)}"
        )
    return dump


def _open_foreign(found: ForeignStep, path: Path) -> RankDump:
    dump_file, debug_file = (ForeignFile(found, is_saved=is_saved) for is_saved in (False, True))
    root = path.resolve()
    return RankDump(found.folder, root, found.step, found.rank, dump_file, debug_file)


def _group_steps(path: Path, ranks: list[RankDump]) -> tuple[StepDump, ...]:
    numbers = sorted({rank.step for rank in ranks}, key=lambda number: -1 if number is None else number)
    return tuple(StepDump(number, path, tuple(rank for rank in ranks if rank.step == number)) for number in numbers)


def _hint(path: Path) -> str:
    names = stored_file.names(path)
    replaced = [name for name in names if REPLACED.fullmatch(name) and stored_file.is_folder(path / name)]
    if not replaced:
        return ""
    return (
        f" An earlier run is in {replaced[-1]}, because the one that was to replace it ended too early: give that "
        f"folder, or put it back with: tensorprobe recover {stored_file.show(path)}"
    )


def _open_file(path: Path) -> Dump:
    kind = path.name.removesuffix(layout.PART_SUFFIX)
    if kind not in _TYPES:
        raise DumpError(
            f"{stored_file.show(path)} is not a dump. Give a dump.json or debug.json (or its .part), or a folder that "
            "holds one."
        )
    folder = path.parent
    file = RecordFile(path, _TYPES[kind])
    dump_file, debug_file = (file, None) if kind == layout.DUMP_FILE else (None, file)
    rank = RankDump(
        folder,
        folder.resolve(),
        _step_of(folder),
        _rank_of(folder),
        dump_file,
        debug_file,
        find_layout(folder),
    )
    return Dump(path, (StepDump(rank.step, folder, (rank,)),))


def _find_steps(path: Path, root: Path) -> tuple[StepDump, ...]:
    if _is_rank_folder(path):
        rank = _open_rank(path, root)
        return (StepDump(rank.step, path, (rank,)),)
    ranks = _find_ranks(path, root)
    if ranks:
        return (StepDump(_number(STEP, path), path, ranks),)
    folders = _folders(path, STEP, root)
    steps = [StepDump(_number(STEP, folder), folder, _find_ranks(folder, root)) for folder in folders]
    return tuple(sorted(steps, key=lambda step: step.number or 0))


def _find_ranks(path: Path, root: Path) -> tuple[RankDump, ...]:
    ranks = [_open_rank(folder, root) for folder in _folders(path, RANK, root)]
    return tuple(sorted(ranks, key=lambda rank: (-1 if rank.rank is None else rank.rank, rank.folder.name)))


def _open_rank(folder: Path, root: Path) -> RankDump:
    dump_file: RecordFile | InfoFile | None = _open_records(folder, layout.DUMP_FILE, root)
    debug_file = _open_records(folder, layout.DEBUG_FILE, root)
    names = find_layout(folder)
    if dump_file is None and names is not None:
        path = side_file.find_file(folder, names.info_file, root)
        dump_file = InfoFile(path, names) if path is not None else None
    return RankDump(folder, root, _step_of(folder), _rank_of(folder), dump_file, debug_file, names)


def _open_records(folder: Path, name: str, root: Path) -> RecordFile | None:
    # A part beside a complete file is the newer one.
    path = side_file.find_file(folder, name + layout.PART_SUFFIX, root) or side_file.find_file(folder, name, root)
    return RecordFile(path, _TYPES[name]) if path else None


def _folders(path: Path, pattern: re.Pattern[str], root: Path) -> list[Path]:
    named = [path / name for name in stored_file.names(path) if pattern.fullmatch(name)]
    stored_file.list_all(named)
    found = [folder for folder in named if stored_file.is_folder(folder)]
    for folder in found:
        if not folder.resolve().is_relative_to(root):
            raise DumpError(f"{folder} is a link that leads out of the dump. Open {folder.resolve()} itself.")
    return found


def _is_rank_folder(folder: Path) -> bool:
    is_ours = any(
        stored_file.is_file(folder / (name + suffix)) for name in _TYPES for suffix in ("", layout.PART_SUFFIX)
    )
    return is_ours or find_layout(folder) is not None


def _step_of(rank_folder: Path) -> int | None:
    return _number(STEP, rank_folder.resolve().parent)


def _rank_of(rank_folder: Path) -> int | None:
    """msprobe's `proc123` is a process outside distributed runs: it has no rank."""
    name = rank_folder.resolve().name
    return _number(RANK, rank_folder) if name.startswith("rank") else None


def _number(pattern: re.Pattern[str], folder: Path) -> int | None:
    found = pattern.fullmatch(folder.resolve().name)
    return int(found.group(1)) if found and found.group(1) else None
