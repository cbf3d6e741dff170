"""Where the pieces of a run lie.

{dump_path}/step{N}/{rank{R} | rank}/   dump.json stack.json construct.json debug.json run.json dump_tensor_data/

A second process that records into the same dump_path at the same time has proc{PID} in the place of rank.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

DUMP_FILE = "dump.json"
STACK_FILE = "stack.json"
CONSTRUCT_FILE = "construct.json"
DEBUG_FILE = "debug.json"
RUN_FILE = "run.json"
TENSOR_FOLDER = "dump_tensor_data"
TENSOR_SUFFIXES = (".pt", ".npy")

PART_SUFFIX = ".part"
"""What a file is called that has no end yet."""
TEMPORARY_SUFFIX = ".tmp"
"""What a file is called until it is whole."""

_MAX_TEMPORARY_STEM_BYTES = 240  # ext4 and NTFS end at 255

# A dump may hold a company's weights: nobody but its owner reads it unless they widen it themselves.
FOLDER_MODE = 0o700
FILE_MODE = 0o600


def step_name(step: int) -> str:
    return f"step{step}"


def rank_name(rank: int | None) -> str:
    """What the folder of a process is called; outside distributed runs it has no number."""
    return "rank" if rank is None else f"rank{rank}"


def process_name() -> str:
    """What it is called where another process has that of its rank."""
    return f"proc{os.getpid()}"


def make_folder(path: Path) -> None:
    """Create a folder and its parents, for their owner only."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def temporary_path(path: Path) -> Path:
    return path.with_name(temporary_name(path.name))


def temporary_name(name: str) -> str:
    """What a file is called until it is whole: hidden, and short enough whatever its name is."""
    stem = f".{name}"
    if len(os.fsencode(stem)) > _MAX_TEMPORARY_STEM_BYTES:
        stem = f".{blake2b(os.fsencode(stem), digest_size=16).hexdigest()}"
    return stem + TEMPORARY_SUFFIX


def open_private(path: Path, flags: int) -> int:
    """A file descriptor of a file that only its owner may read."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE_MODE)
