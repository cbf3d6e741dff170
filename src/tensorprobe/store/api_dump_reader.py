"""An api_dump of TroubleShooter, which has no dump.json: its info file, read as the records that it tells of.

A file may come from anyone and may end anywhere: a line that is no entry is counted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.model.count import count_noun
from tensorprobe.store import journal, layout, stored_file
from tensorprobe.store.api_dump_info import parse_line
from tensorprobe.store.api_dump_layout import ApiDumpLayout
from tensorprobe.store.record_file import load_whole
from tensorprobe.store.side_file import Frames, SideFile, find_file

STACK_TYPES: journal.Types = (list,)
_FIELDS = {
    ("forward", "input"): "input_args",
    ("forward", "kwargs"): "input_kwargs",
    ("backward", "kwargs"): "output_kwargs",
}
_STACK_ENDING = "_stack_info"


@dataclass(frozen=True)
class InfoFile:
    """Read when something is first asked of it; what `RecordFile` is to a dump.json."""

    path: Path
    names_of_files: ApiDumpLayout
    is_part = False

    @property
    def size_bytes(self) -> int:
        return stored_file.size_bytes(self.path)

    @property
    def is_complete(self) -> bool:
        return True

    @property
    def has_bad_lines(self) -> bool:
        return bool(self._content[1])

    @property
    def header(self) -> Mapping[str, Any]:
        task = "tensor" if self._files else "statistics"
        return {"task": task, "level": "api_dump", "framework": self.names_of_files.framework}

    @property
    def problems(self) -> tuple[str, ...]:
        bad = self._content[1]
        lines = count_noun(bad, "line cannot be read and is", "lines cannot be read and are")
        return (f"{self.path.name}: {lines} left out",) if bad else ()

    def __len__(self) -> int:
        return len(self._content[0])

    def __bool__(self) -> bool:
        """A file without entries is still a file."""
        return True

    def names(self) -> Iterator[str]:
        return iter(self._content[0])

    def items(self) -> Iterator[tuple[str, Any]]:
        """The records in the order in which they first appear."""
        return iter(self._content[0].items())

    def get(self, name: str) -> Any:
        """One record; KeyError when it is not there."""
        return self._content[0][name]

    @cached_property
    def _content(self) -> tuple[dict[str, dict[str, Any]], int]:
        records: dict[str, dict[str, Any]] = {}
        bad_count = 0
        for _, _, line in journal.iter_lines(self.path):
            try:
                is_read = self._add(records, journal.parse_json(line, self.path))
            except ValueError:
                is_read = not line.strip()
            bad_count += not is_read
        return records, bad_count

    def _add(self, records: dict[str, dict[str, Any]], line: Any) -> bool:
        parsed = parse_line(line)
        if parsed is None:
            return False
        record, role, place, leaf = parsed
        file_name = f"{line[0]}.npy"
        if "shape" in leaf:
            leaf["type"] = f"{self.names_of_files.word}.Tensor"
        if file_name in self._files:
            leaf["data_name"] = file_name
        field = _FIELDS.get((record.rpartition("_")[2], role), role)
        records.setdefault(record, {}).setdefault(field, {})[place or "0"] = leaf
        return True

    @cached_property
    def _files(self) -> frozenset[str]:
        folder = self.path.parent / self.names_of_files.tensor_folder
        try:
            # A link may lead out of the dump: nothing is looked for behind it.
            return frozenset() if folder.is_symlink() else frozenset(stored_file.names(folder))
        except OSError:  # only statistics
            return frozenset()


def stack_reading(names: ApiDumpLayout) -> Callable[[Path, Path], SideFile[dict[str, Frames]]]:
    """How the stacks of such a dump are read: names and their frames, whole or cut off."""

    def read(folder: Path, root: Path) -> SideFile[dict[str, Frames]]:
        part = find_file(folder, names.stack_file + layout.PART_SUFFIX, root)
        path = find_file(folder, names.stack_file, root)
        if part is not None:
            outline = journal.outline_part(part, STACK_TYPES)
            content = dict(journal.iter_entries(part, outline, STACK_TYPES))
        else:
            content = {} if path is None else load_whole(path)
        return SideFile({name.removesuffix(_STACK_ENDING): _read_frames(frames) for name, frames in content.items()})

    return read


def _read_frames(frames: Any) -> Frames:
    return tuple(frame for frame in frames if isinstance(frame, str)) if isinstance(frames, list) else ()
