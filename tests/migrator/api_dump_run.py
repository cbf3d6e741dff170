"""Reading what an api_dump left, for the tests of both frameworks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorprobe.migrator import api_dump, api_dump_start, api_dump_stop

_RECORD = re.compile(r".*_(?:forward|backward|recompute)(?=_)")


def forget_session() -> None:
    """As in a fresh process."""
    session, api_dump._session = api_dump._session, None
    if session is not None:
        session.close()


@contextmanager
def window(*arguments: Any, **options: Any) -> Iterator[None]:
    api_dump_start(*arguments, **options)
    yield
    api_dump_stop()


class Dumped:
    """The files of one rank."""

    def __init__(self, output_path: Path, word: str, rank: int = 0) -> None:
        self.folder = output_path / f"rank{rank}"
        self._word = word

    @property
    def info(self) -> list[list[Any]]:
        text = (self.folder / f"{self._word}_api_dump_info.pkl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def slots(self) -> list[str]:
        """The first column of the info file."""
        return [line[0] for line in self.info]

    @property
    def calls(self) -> list[str]:
        """The records that have lines, in their order."""
        return list(dict.fromkeys(_RECORD.match(slot)[0] for slot in self.slots))  # type: ignore[index]

    @property
    def stacks(self) -> dict[str, list[str]]:
        content: dict[str, list[str]] = json.loads((self.folder / f"{self._word}_api_dump_stack.json").read_text())
        return content

    @property
    def files(self) -> list[str]:
        folder = self.folder / f"{self._word}_api_dump"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    @property
    def records(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "dump.json").read_text())
        return dict(content["data"])

    def path(self, slot: str) -> Path:
        return self.folder / f"{self._word}_api_dump" / f"{slot}.npy"
