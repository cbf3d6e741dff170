"""A JSON file that holds one object, read so that every mistake in it has a place and a remedy."""

from __future__ import annotations

import json
from typing import Any

from tensorprobe.config.setting import show_value
from tensorprobe.config.text_file import read_text
from tensorprobe.errors import ConfigError


def read_json_object(file: str) -> dict[str, Any]:
    """The object in the file; `file` is the path as the user wrote it, for the text of errors."""
    try:
        document = json.loads(read_text(file), object_pairs_hook=lambda pairs: _unique(pairs, file))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        advice = "correct it there; JSON has no comments and no comma before a closing bracket"
        raise ConfigError(f"{file} is not valid JSON: {error.msg} ({place}); {advice}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested brackets
        raise ConfigError(f"{file} cannot be read as JSON: {error}; shorten it") from None
    if not isinstance(document, dict):
        raise ConfigError(f'{file} holds {show_value(document)}, not an object; write {{"task": "statistics", …}}')
    return document


def _unique(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise ConfigError(f'{file} has the key "{key}" twice in one object; keep one of them')
        document[key] = value
    return document
