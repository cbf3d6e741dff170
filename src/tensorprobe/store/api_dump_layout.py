"""Where the pieces of an api_dump lie, as TroubleShooter lays them out.

{output_path}/rank{R}/   torch_api_dump/*.npy   torch_api_dump_info.pkl   torch_api_dump_stack.json
                         dump.json   run.json

The word in front is the framework's. The last two are ours; a dump of TroubleShooter has none, and may have its info
file as `.csv`, with the same content.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorprobe.store import stored_file

_WORDS = {"pytorch": "torch"}
WORDS = ("torch", "mindspore", "mindtorch")
FRAMEWORKS = {"torch": "pytorch", "mindspore": "mindspore", "mindtorch": "mindtorch"}
_INFO_SUFFIXES = (".pkl", ".csv")


@dataclass(frozen=True)
class ApiDumpLayout:
    """The names of one framework's files."""

    word: str
    info_suffix: str = _INFO_SUFFIXES[0]

    @property
    def tensor_folder(self) -> str:
        return f"{self.word}_api_dump"

    @property
    def info_file(self) -> str:
        return f"{self.word}_api_dump_info{self.info_suffix}"

    @property
    def stack_file(self) -> str:
        return f"{self.word}_api_dump_stack.json"

    @property
    def framework(self) -> str:
        """As dump.json names it."""
        return FRAMEWORKS[self.word]


def layout_of(framework: str) -> ApiDumpLayout:
    """For what a framework is called in dump.json."""
    return ApiDumpLayout(_WORDS.get(framework, framework))


def find_layout(folder: Path) -> ApiDumpLayout | None:
    """Which framework's api_dump lies in a rank folder, by the names of its files; None if none does."""
    for word in WORDS:
        for suffix in _INFO_SUFFIXES:
            found = ApiDumpLayout(word, suffix)
            if stored_file.is_file(folder / found.info_file):
                return found
    return None
