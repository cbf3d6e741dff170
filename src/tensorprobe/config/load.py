"""config.json and the arguments that win over it, merged into one `CaptureConfig`."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from typing import Any

from tensorprobe.config.capture_config import CaptureConfig
from tensorprobe.config.config_file import ConfigFile, read_config_file, read_values
from tensorprobe.config.known_key import COMMON_READERS, SECTION_READERS, check_arguments
from tensorprobe.config.setting import ARGUMENTS, Setting, Source
from tensorprobe.config.value import read_path
from tensorprobe.errors import ConfigError

_DEFAULTS = CaptureConfig()

# Task tensor stores all tensors, with or without a list; structure computes and stores no values.
_USELESS_KEYS = {
    "statistics": (),
    "tensor": ("tensor_list",),
    "replay": (),
    "structure": ("summary_mode", "tensor_list", "on_nonfinite", "flight_recorder", "tensorboard"),
}

_REPLAYED_LEVELS = ("L1", "mix")
_MODULE_LEVELS = ("L0", "mix")

_logger = logging.getLogger("tensorprobe")


def load_config(
    config_path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: int | str | Collection[int | str] | None = None,
    **overrides: object,
) -> CaptureConfig:
    """The configuration of a session. An argument that is not None wins over the file; the rest are defaults.

    `overrides` are the other fields of `CaptureConfig`, flat, whatever section they have in the file.
    """
    given = {"task": task, "dump_path": dump_path, "level": level, "step": step, **overrides}
    check_arguments(given)
    arguments = read_values(given, {**COMMON_READERS, **SECTION_READERS}, ARGUMENTS)
    file = _read_file(config_path)
    chosen_task = {"task": _DEFAULTS.task, **file.common, **arguments}["task"]
    section = _drop_useless(file.sections.get(chosen_task, {}), chosen_task, Source(file.file, chosen_task))
    common = _drop_useless(file.common, chosen_task, Source(file.file))
    merged = CaptureConfig(**{**common, **section, **_drop_useless(arguments, chosen_task, ARGUMENTS)})
    if merged.task == "replay" and merged.level not in _REPLAYED_LEVELS:
        raise ConfigError(
            f'task "replay" records calls, so that they can be executed again, and level "{merged.level}" has none: '
            'write "level": "L1" or "mix"'
        )
    if merged.tensorboard is not None and merged.level not in _MODULE_LEVELS:
        raise ConfigError(
            f'"tensorboard" writes the norms of modules, and level "{merged.level}" records none: write "level": "L0" '
            'or "mix"'
        )
    return merged


def _read_file(config_path: object) -> ConfigFile:
    if config_path is None:
        return ConfigFile()
    return read_config_file(read_path(Setting("config_path", config_path)))


def _drop_useless(values: Mapping[str, Any], task: str, source: Source) -> dict[str, Any]:
    kept = dict(values)
    for key in _USELESS_KEYS[task]:
        if kept.pop(key, getattr(_DEFAULTS, key)) != getattr(_DEFAULTS, key):
            _logger.warning("%s has no effect with task %s (%s) and is ignored", key, task, source.place(key))
    return kept
