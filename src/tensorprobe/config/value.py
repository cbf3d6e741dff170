"""From what a user wrote to what `CaptureConfig` holds, one reader for each kind of value.

A reader raises `ConfigError` or returns the value; it never sees None, which means default everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorprobe.config.capture_config import DATA_MODES
from tensorprobe.config.setting import Setting
from tensorprobe.config.suggestion import suggest
from tensorprobe.model.name import parse_name
from tensorprobe.model.url import read_path as read_local_path
from tensorprobe.model.url import read_url

Reader = Callable[[Setting], Any]


def read_choice(accepted: tuple[str, ...]) -> Reader:
    """A reader that takes one of the accepted words."""

    def read(setting: Setting) -> str:
        if not isinstance(setting.value, str) or setting.value not in accepted:
            raise setting.error(f"is not one of {', '.join(accepted)}", suggest(setting.value, accepted))
        return setting.value

    return read


def read_flag(setting: Setting) -> bool:
    """true or false, not 1 and not "true"."""
    if isinstance(setting.value, bool):
        return setting.value
    accepted = "True, False" if setting.source.file is None else "true, false"
    is_quoted = isinstance(setting.value, str) and setting.value.lower() in ("true", "false")
    raise setting.error(f"is not one of {accepted}", "write it without quotes" if is_quoted else "")


def read_path(setting: Setting) -> str:
    """The path as the user wrote it."""
    value = setting.value
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        kinds = "a string or a pathlib.Path" if setting.source.file is None else "a string"
        raise setting.error("is not a path", f"give {kinds}")
    return text


def read_folder(setting: Setting) -> Path:
    """A folder that exists, or that can still be made; a relative one starts at the working directory. An address
    in a store is taken as it is."""
    folder = read_local_path(read_path(setting))
    if read_url(folder) is not None:
        return folder
    if _is_file(folder):
        raise setting.error("is a file", "name a folder; it is made if it does not exist")
    blocker = next((parent for parent in folder.absolute().parents if _is_file(parent)), None)
    if blocker is not None:
        raise setting.error(
            "cannot be a folder", f"{blocker} is a file; name a folder, which is made if it does not exist"
        )
    return folder


def read_existing_file(setting: Setting) -> Path:
    """A file next to the configuration that names it, or in the working directory."""
    path = Path(read_path(setting))
    base = Path(setting.source.file).parent if setting.source.file else Path()
    candidates = list(dict.fromkeys([base / path, path]))
    for candidate in candidates:
        if _is_file(candidate):
            return candidate
    raise setting.error("is not a file", f"looked for {' and '.join(str(each.absolute()) for each in candidates)}")


def read_strings(setting: Setting) -> tuple[str, ...]:
    """A list of parts of names. An empty part would be part of every name, so it is refused."""
    value = setting.value
    if isinstance(value, str):
        raise setting.error("is not a list of strings", f'write ["{value}"]')
    if not isinstance(value, (list, tuple)):
        raise setting.error("is not a list of strings")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise setting.of_item(item).error("is not a non-empty string", "correct it or take it out of the list")
    return tuple(value)


def read_scope(setting: Setting) -> tuple[str, ...]:
    """No name, or the names of the first and the last call to record."""
    names = read_strings(setting)
    if len(names) not in (0, 2):
        advice = "give none, or exactly two: the first and the last call to record"
        raise setting.error(f"has {len(names)} name{'s' if len(names) > 1 else ''}", advice)
    for name in names:
        _check_record_name(setting.of_item(name), name)
    return names


def read_data_modes(setting: Setting) -> frozenset[str]:
    """Which parts of a call to record; "all" is the empty set, like an empty list."""
    value = (setting.value,) if isinstance(setting.value, str) else setting.value
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise setting.error(f"is not a list from {', '.join(DATA_MODES)}")
    read_mode = read_choice(DATA_MODES)
    modes = frozenset(read_mode(setting.of_item(item)) for item in value)
    if "all" in modes and len(modes) > 1:
        raise setting.error('has "all" beside others', 'give "all" alone, or leave it out')
    return modes - {"all"}


def _check_record_name(setting: Setting, name: str) -> None:
    try:
        parse_name(name)
    except ValueError:
        examples = "Functional.linear.0.forward or Module.conv1.Conv2d.forward.0"
        raise setting.error("is not the name of a record", f"write one as in dump.json, like {examples}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder that may not be entered
        return False
