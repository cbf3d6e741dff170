"""The address of a dump in a store: `s3://bucket/run`, `gs://…`, `memory://…`; `file:///…` is a path of this machine.

A path of pathlib has one slash where two belong (`s3:/bucket/run`), and is understood too. A letter alone is a drive of
Windows.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_URL = re.compile(r"([a-z][a-z0-9+.-]+):(/+)(.*)", re.IGNORECASE | re.DOTALL)
_LOCAL = ("file", "local")


def read_url(path: str | os.PathLike[str]) -> str | None:
    """The address in a store, without a slash at its end; None for a path of this machine."""
    found = _match(path)
    return f"{found[1].lower()}://{found[3].rstrip('/')}" if found and found[1].lower() not in _LOCAL else None


def read_path(path: str | os.PathLike[str]) -> Path:
    """The path of this machine that is meant; `file:///tmp/run` is one."""
    found = _match(path)
    return Path(f"/{found[3]}") if found and found[1].lower() in _LOCAL else Path(path)


def make_absolute(path: Path) -> Path:
    """A path that holds wherever the working directory is; an address does already."""
    return path if read_url(path) is not None else path.absolute()


def show_location(path: str | os.PathLike[str]) -> str:
    """As the user would write it."""
    return read_url(path) or str(read_path(path))


def _match(path: str | os.PathLike[str]) -> re.Match[str] | None:
    text = os.fspath(path)
    found = _URL.fullmatch(text)
    is_folder = found is not None and found[2] == "/" and Path(text).exists()  # somebody has a folder of that name
    return None if is_folder else found
