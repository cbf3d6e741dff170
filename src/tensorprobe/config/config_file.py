"""config.json or config.yaml, with every key and value checked, those of the sections that are not used too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.config.capture_config import TASKS
from tensorprobe.config.json_object import read_json_object
from tensorprobe.config.known_key import COMMON_READERS, SECTION_READERS, check_common_keys, check_section_keys
from tensorprobe.config.setting import Setting, Source
from tensorprobe.config.value import Reader
from tensorprobe.config.yaml_object import read_yaml_object

_PATH_KEYS = ("dump_path", "api_yaml")


@dataclass(frozen=True)
class ConfigFile:
    """What a file sets: the common fields, and those of each section. What it leaves out is not in them."""

    file: str | None = None
    common: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_config_file(file: str) -> ConfigFile:
    """Read and check the file at this path."""
    is_yaml = file.lower().endswith((".yaml", ".yml"))
    document = read_yaml_object(file) if is_yaml else read_json_object(file)
    source = Source(file)
    check_common_keys(document, source)
    common = read_values(document, COMMON_READERS, source)
    return ConfigFile(file, common, read_values(document, dict.fromkeys(TASKS, _read_section), source))


def read_values(given: Mapping[str, object], readers: Mapping[str, Reader], source: Source) -> dict[str, Any]:
    """The fields that are given, read; null, and an empty path, is as good as not given."""
    values: dict[str, Any] = {}
    for key, reader in readers.items():
        value = given.get(key)
        is_empty_path = key in _PATH_KEYS and isinstance(value, str) and not value
        if value is not None and not is_empty_path:
            values[key] = reader(Setting(key, value, source))
    return values


def _read_section(setting: Setting) -> dict[str, Any]:
    section = setting.value
    if not isinstance(section, dict):
        raise setting.error("is not an object", f'write "{setting.key}": {{"list": [], …}}')
    source = Source(setting.source.file, setting.key)
    check_section_keys(section, source)
    return read_values(section, SECTION_READERS, source)
