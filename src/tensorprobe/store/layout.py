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


def rank_folder(dump_path: Path, step: int, rank: int | None) -> Path:
    """The folder of one step of one process; outside distributed runs it is called `rank`."""
    return dump_path / f"step{step}" / rank_name(rank)


def rank_name(rank: int | None) -> str:
    return "rank" if rank is None else f"rank{rank}"


def process_folder(dump_path: Path, step: int) -> Path:
    """The folder of one step of this process, where another process has that of its rank."""
    return dump_path / f"step{step}" / process_name()


def process_name() -> str:
    return f"proc{os.getpid()}"


def make_folder(path: Path) -> None:
    """Create a folder and its parents, for their owner only."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def clear_folder(folder: Path) -> bool:
    """Remove what an earlier run left in a rank folder; True if there was something. Files we do not know stay."""
    found = False
    for name in (DUMP_FILE, STACK_FILE, CONSTRUCT_FILE, DEBUG_FILE, RUN_FILE):
        for path in (folder / name, folder / (name + PART_SUFFIX)):
            if path.exists() or path.is_symlink():
                path.unlink()
                found = True
        for path in folder.glob(f".{name}*{TEMPORARY_SUFFIX}"):
            path.unlink()
            found = True
    return clear_tensors(folder / TENSOR_FOLDER) or found


def clear_tensors(folder: Path) -> bool:
    """Remove tensor files, whole or not; True if there were any."""
    found = False
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (*TENSOR_SUFFIXES, TEMPORARY_SUFFIX):
            path.unlink()
            found = True
    return found


def remove_empty_folders(folder: Path) -> None:
    """Remove the folder of a rank, and those of its tensors and its step, if there is nothing in them."""
    for path in (folder / TENSOR_FOLDER, folder, folder.parent):
        try:
            path.rmdir()
        except OSError:  # something is in it, or it is not there
            continue


def temporary_path(path: Path) -> Path:
    """What a file is called until it is whole: hidden, and short enough whatever its name is."""
    stem = f".{path.name}"
    if len(os.fsencode(stem)) > _MAX_TEMPORARY_STEM_BYTES:
        stem = f".{blake2b(os.fsencode(stem), digest_size=16).hexdigest()}"
    return path.with_name(stem + TEMPORARY_SUFFIX)


def open_private(path: Path, flags: int) -> int:
    """A file descriptor of a file that only its owner may read."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE_MODE)
