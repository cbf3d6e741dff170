"""What belongs to a dump in the folder of a rank, by its name: only that is ever moved or removed."""

from __future__ import annotations

import re

from tensorprobe.store import layout
from tensorprobe.store.api_dump_layout import WORDS, ApiDumpLayout

_LAYOUTS = tuple(ApiDumpLayout(word) for word in WORDS)
_FILES = (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE, layout.DEBUG_FILE, layout.RUN_FILE)
_API_DUMP_FILES = tuple(name for names in _LAYOUTS for name in (names.info_file, names.stack_file))

TENSOR_FOLDERS = (layout.TENSOR_FOLDER, *(names.tensor_folder for names in _LAYOUTS))
STEP = re.compile(r"step(\d+)")
RANK = re.compile(r"(?:rank|proc)(\d*)")


def is_own_name(name: str) -> bool:
    """A file of records or of what lies beside them, whole or not, or the folder of their tensors."""
    return is_own_file(name) or name in TENSOR_FOLDERS


def is_own_file(name: str) -> bool:
    if name.startswith(".") and name.endswith(layout.TEMPORARY_SUFFIX):
        return name[1:].startswith((*_FILES, *_API_DUMP_FILES))
    return name.removesuffix(layout.PART_SUFFIX) in (*_FILES, *_API_DUMP_FILES)


def is_tensor_file(name: str) -> bool:
    """Whole or not."""
    return name.endswith((*layout.TENSOR_SUFFIXES, layout.TEMPORARY_SUFFIX))
