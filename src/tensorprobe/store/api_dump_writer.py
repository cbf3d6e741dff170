"""The files of an api_dump, appended as those of every dump are: what was flushed is there, whatever ends the process.

The info file has no end that could be missing. The stack file grows as `.part`, as dump.json does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from tensorprobe.store.api_dump_info import iter_lines
from tensorprobe.store.api_dump_layout import ApiDumpLayout
from tensorprobe.store.disk import append_whole
from tensorprobe.store.encode import encode_entry
from tensorprobe.store.folder import Folder
from tensorprobe.store.writer import AppendedObject, RankWriter, run_all


class ApiDumpWriter(RankWriter):
    """dump.json and run.json as everywhere, and TroubleShooter's files beside them."""

    def __init__(self, folder: Folder, header: dict[str, Any], names: ApiDumpLayout) -> None:
        super().__init__(folder, header, has_construct=False, has_extra=False)
        self.is_filtered = True
        """Have the records that are written from now on no line for what is no tensor of floating-point numbers?"""
        self._names = names
        self._stacks = AppendedObject(folder, names.stack_file, "{", "}")
        self._stack_entries: list[str] = []

    def append_records(self, records: Iterable[tuple[str, Any]]) -> None:
        listed = list(records)
        lines = [line for name, fields in listed for line in iter_lines(name, fields, is_filtered=self.is_filtered)]
        super().append_records(listed)
        self._append_info(lines)

    def add_stack(self, name: str, stack_id: int, frames: Sequence[str]) -> None:
        self._stack_entries.append(encode_entry(name, list(frames)))

    def flush_stacks(self) -> None:
        entries, self._stack_entries = self._stack_entries, []
        self._stacks.append(entries)

    def close(self, run: dict[str, Any], *, is_finished: bool) -> None:
        run_all([self._stacks.close, lambda: super(ApiDumpWriter, self).close(run, is_finished=is_finished)])

    def discard(self) -> None:
        self._stacks.discard()
        self.folder.unlink(self._names.info_file)
        self.folder.remove_folder(self._names.tensor_folder)
        super().discard()

    def abandon(self) -> None:
        self._stacks.abandon()
        super().abandon()

    def _append_info(self, lines: Sequence[str]) -> None:
        descriptor = self.folder.open(self._names.info_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            append_whole(descriptor, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(descriptor)
