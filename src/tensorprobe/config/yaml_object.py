"""A YAML file that holds one mapping: the same configuration as config.json, with comments. Needs pyyaml."""

from __future__ import annotations

from typing import Any

from tensorprobe.config.plain_yaml import describe_mistake, plain_loader
from tensorprobe.config.setting import show_value
from tensorprobe.config.text_file import read_text
from tensorprobe.errors import ConfigError


def read_yaml_object(file: str) -> dict[str, Any]:
    """The mapping in the file; `file` is the path as the user wrote it, for the text of errors."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            f"{file} is YAML, which needs pyyaml: pip install pyyaml, or write the file as JSON"
        ) from None
    text = read_text(file)
    try:
        document = yaml.load(text, Loader=plain_loader())
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid YAML: {describe_mistake(error)}; correct it there") from None
    if document is None:  # all is commented out
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{file} holds {show_value(document)}, not keys with values; write: level: L1")
    return document
