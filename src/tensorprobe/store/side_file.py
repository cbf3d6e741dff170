"""What lies beside the records: nesting, stacks, circumstances.

None of it is needed to read the records: a piece that is missing or spoilt is a problem to report, not an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tensorprobe.errors import DumpError
from tensorprobe.model.count import count_noun
from tensorprobe.store import journal, layout, stored_file
from tensorprobe.store.record_file import load_whole

Content = TypeVar("Content")
Frames = tuple[str, ...]


@dataclass(frozen=True)
class SideFile(Generic[Content]):
    """What could be read, and what was wrong."""

    content: Content
    problems: tuple[str, ...] = ()


@dataclass
class StackJournal:
    """stack.json.part while it is read: stacks by number, and the records that have them."""

    frames: dict[int, Frames]
    calls: list[tuple[int, str]]
    bad_lines: int = 0


Entry = TypeVar("Entry")
Reading = Callable[[Path, Path], SideFile[dict[str, Entry]]]


def read_noting(read: Reading[Entry], folder: Path, root: Path) -> SideFile[dict[str, Entry]]:
    """Read a side file; what cannot be read at all becomes a problem."""
    try:
        return read(folder, root)
    except DumpError as error:
        return SideFile({}, (str(error),))


def read_parents(folder: Path, root: Path) -> SideFile[dict[str, str | None]]:
    """construct.json: each record and the module call that contains it."""
    path, part = _locate(folder, layout.CONSTRUCT_FILE, root)
    if part is not None:
        outline = journal.outline_part(part, journal.PARENT_TYPES)
        problems = (
            (f"{part.name}: {count_noun(len(outline.bad_lines), 'line')} cannot be read",) if outline.bad_lines else ()
        )
        return SideFile(dict(journal.iter_entries(part, outline, journal.PARENT_TYPES)), problems)
    content = _load(path)
    return SideFile({name: parent for name, parent in content.items() if parent is None or isinstance(parent, str)})


def read_stacks(folder: Path, root: Path) -> SideFile[dict[str, Frames]]:
    """stack.json by record. A journal beside it is newer, and wins where both know a record."""
    path, part = _locate(folder, layout.STACK_FILE, root)
    content = _load(path) if part is None else _load_if_whole(path)
    stacks: dict[str, Frames] = {}
    for group in content.values():
        names, frames = group if isinstance(group, list) and len(group) == 2 else ((), ())
        if isinstance(names, list) and isinstance(frames, list):
            stacks.update(dict.fromkeys(_texts(names), tuple(_texts(frames))))
    if part is None:
        return SideFile(stacks)
    found = read_stack_journal(part)
    stacks.update({name: found.frames.get(number, ()) for number, name in found.calls})
    return SideFile(
        stacks, (f"{part.name}: {count_noun(found.bad_lines, 'line')} cannot be read",) if found.bad_lines else ()
    )


def read_stack_journal(path: Path) -> StackJournal:
    """Every whole line; a last line that was cut is expected and not counted."""
    found = StackJournal({}, [])
    for _, _, line in journal.iter_lines(path):
        try:
            is_read = _add_journal_line(found, journal.parse_json(line, path))
        except ValueError:
            is_read = False
        found.bad_lines += not is_read and line.endswith(b"\n")
    return found


def _add_journal_line(found: StackJournal, line: Any) -> bool:
    """`["stack", 0, ["File …", …]]` or `["call", 0, "Functional.linear.0.forward"]`; False for everything else."""
    if not isinstance(line, list) or len(line) != 3 or type(line[1]) is not int:
        return False
    kind, number, content = line
    if kind == "stack" and isinstance(content, list):
        found.frames[number] = tuple(_texts(content))
        return True
    if kind == "call" and isinstance(content, str):
        found.calls.append((number, content))
        return True
    return False


def read_run(folder: Path, root: Path) -> SideFile[dict[str, Any]]:
    """run.json: versions, settings, coverage; empty when another tool made the dump."""
    path, _ = _locate(folder, layout.RUN_FILE, root)
    return SideFile(_load(path))


def find_file(folder: Path, name: str, root: Path) -> Path | None:
    """A regular file of the dump; a link that leaves the dump is refused."""
    path = folder / name
    if not stored_file.is_file(path):
        return None
    if not path.resolve().is_relative_to(root):
        raise DumpError(f"{path} is a link that leads out of the dump. Replace it by the file: {path.resolve()}")
    return path


def _locate(folder: Path, name: str, root: Path) -> tuple[Path | None, Path | None]:
    return find_file(folder, name, root), find_file(folder, name + layout.PART_SUFFIX, root)


def _load(path: Path | None) -> dict[str, Any]:
    return {} if path is None else load_whole(path)


def _load_if_whole(path: Path | None) -> dict[str, Any]:
    """The older of two files: what is wrong with it does not matter."""
    try:
        return _load(path)
    except DumpError:
        return {}


def _texts(items: list[Any]) -> Iterator[str]:
    return (item for item in items if isinstance(item, str))
