"""The keys of a configuration, how each is read, and what happens to a key that is not one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tensorprobe.config.capture_config import COMPILED_MODES, LEVELS, NONFINITE_ACTIONS, SUMMARY_MODES, TASKS
from tensorprobe.config.flight_recorder import read_flight_recorder
from tensorprobe.config.msprobe_key import MSPROBE_COMMON_KEYS, MSPROBE_SECTION_KEYS
from tensorprobe.config.number_range import read_numbers
from tensorprobe.config.setting import Source
from tensorprobe.config.size import read_size
from tensorprobe.config.suggestion import suggest
from tensorprobe.config.value import (
    Reader,
    read_choice,
    read_data_modes,
    read_existing_file,
    read_flag,
    read_folder,
    read_scope,
    read_strings,
)
from tensorprobe.errors import ConfigError

COMMON_READERS: dict[str, Reader] = {
    "task": read_choice(TASKS),
    "dump_path": read_folder,
    "rank": read_numbers,
    "step": read_numbers,
    "level": read_choice(LEVELS),
    "async_dump": read_flag,
    "extra_info": read_flag,
    "api_yaml": read_existing_file,
    "on_nonfinite": read_choice(NONFINITE_ACTIONS),
    "max_disk": read_size,
    "min_free": read_size,
    "flight_recorder": read_flight_recorder,
    "tensorboard": read_folder,
    "compiled": read_choice(COMPILED_MODES),
}

SECTION_READERS: dict[str, Reader] = {
    "scope": read_scope,
    "list": read_strings,
    "data_mode": read_data_modes,
    "summary_mode": read_choice(SUMMARY_MODES),
    "tensor_list": read_strings,
}

_logger = logging.getLogger("tensorprobe")


def check_common_keys(keys: Iterable[str], source: Source) -> None:
    """Refuse what nobody knows at the top level of a file; warn of what only msprobe knows."""
    _check_file_keys(keys, (*COMMON_READERS, *TASKS), MSPROBE_COMMON_KEYS, source)


def check_section_keys(keys: Iterable[str], source: Source) -> None:
    """The same in the section of a task."""
    _check_file_keys(keys, tuple(SECTION_READERS), MSPROBE_SECTION_KEYS, source)


def check_arguments(names: Iterable[str]) -> None:
    """Arguments are written for this package, so a key that only msprobe knows is refused too."""
    accepted = ("config_path", *COMMON_READERS, *SECTION_READERS)
    for name in names:
        if name not in accepted:
            raise _unknown_error(f'unknown argument "{name}"', suggest(name, accepted), "arguments", accepted)


def _check_file_keys(keys: Iterable[str], accepted: tuple[str, ...], ignored: frozenset[str], source: Source) -> None:
    for key in keys:
        if key in ignored:
            text = '%s: the key "%s" of msprobe has no counterpart in tensorprobe and is ignored'
            _logger.warning(text, source.file, source.key_path(key))
        elif key not in accepted:
            section = f'section "{source.section}" of ' if source.section else ""
            problem = f'unknown key "{key}" in {section}{source.file}'
            raise _unknown_error(problem, _right_place(key, source) or suggest(key, accepted), "keys", accepted)


def _right_place(key: str, source: Source) -> str:
    if source.section and key in COMMON_READERS:
        return "it belongs at the top level."
    if not source.section and key in SECTION_READERS:
        return 'it belongs in the section of the task, "statistics" or "tensor".'
    return ""


def _unknown_error(problem: str, advice: str, kind: str, accepted: tuple[str, ...]) -> ConfigError:
    separator = f"; {advice}" if advice else "."
    return ConfigError(f"{problem}{separator} Accepted {kind}: {', '.join(accepted)}")
