"""The options of one window of api_dump, as TroubleShooter has them, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.config.setting import Setting
from tensorprobe.config.size import read_size
from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.model.name import ApiName, parse_name

MODES = ("all", "list", "range", "api_list")
DUMP_TYPES = ("all", "statistics")

_DIRECTIONS = ("forward", "backward")
_EXAMPLE = "NN_Dense_1_backward"
_SLOT = re.compile(r"(.+)_(?:input|output|kwargs|parameters|buffers)(?:\..*)?", re.DOTALL)
"""A name of the info file, or of a tensor file: the call, and one of its values."""


@dataclass(frozen=True)
class ScopeName:
    """One name of a scope: a call, in one direction or in both."""

    call: str
    """`NN_Dense_1`"""
    direction: str | None

    def covers(self, direction: str) -> bool:
        return self.direction is None or self.direction == direction


@dataclass(frozen=True)
class ApiDumpOptions:
    """What one window records."""

    mode: str = "all"
    names: tuple[ScopeName, ...] = ()
    """With `list` the calls, with `range` the first and the last."""
    keywords: tuple[str, ...] = ()
    """With `api_list`: parts of names, in small letters and without underscores."""
    stores_tensors: bool = True
    filters_data: bool = True
    """No file and no line of what is no tensor of floating-point numbers, or is one number."""


def read_options(mode: Any, scope: Any, dump_type: Any, filter_data: Any) -> ApiDumpOptions:
    """The arguments of `api_dump_start`; UsageError for what they cannot mean."""
    _check_choice("mode", mode, MODES)
    _check_choice("dump_type", dump_type, DUMP_TYPES)
    _check_flag("api_dump_start", "filter_data", filter_data)
    texts = _read_scope(mode, scope)
    return ApiDumpOptions(
        mode=mode,
        names=tuple(_read_name(mode, text) for text in texts) if mode in ("list", "range") else (),
        keywords=tuple(_read_keyword(text) for text in texts) if mode == "api_list" else (),
        stores_tensors=dump_type == "all",
        filters_data=filter_data,
    )


def read_output(output_path: Any, retain_backward: Any) -> Path:
    """The arguments of `api_dump_init` besides the net."""
    _check_flag("api_dump_init", "retain_backward", retain_backward)
    if not isinstance(output_path, (str, os.PathLike)) or not os.fspath(output_path) or "\0" in str(output_path):
        raise UsageError(f"api_dump_init: output_path {output_path!r} is not a path: give a string or a pathlib.Path")
    folder = Path(output_path)
    blocker = next((path for path in (folder, *folder.absolute().parents) if path.is_file()), None)
    if blocker is not None:
        raise UsageError(
            f"api_dump_init: output_path {str(folder)!r} cannot be a folder, because {blocker} is a file: "
            "name a folder, which is made if it does not exist"
        )
    return folder


def read_min_free(min_free: Any) -> int | None:
    """How many bytes stay free on the disk; None: as many as a capture leaves."""
    return None if min_free is None else read_size(Setting("min_free", min_free))


def make_keyword(text: str) -> str:
    """`LayerNorm`, `layer_norm` and `layernorm` are one.

    >>> make_keyword("NN_LayerNorm"), make_keyword("layer_norm")
    ('nnlayernorm', 'layernorm')
    """
    return text.replace("_", "").replace(".", "").lower()


def _read_scope(mode: str, scope: Any) -> Sequence[str]:
    if scope is None:
        scope = []
    if isinstance(scope, str) or not isinstance(scope, (list, tuple)):
        example = f"[{scope!r}]" if isinstance(scope, str) else f"[{_EXAMPLE!r}]"
        raise UsageError(f"api_dump_start: scope {scope!r} is not a list of names: write {example}")
    for item in scope:
        if not isinstance(item, str) or not item.strip():
            raise UsageError(f"api_dump_start: {item!r} in scope is not a name: take it out, or write its name")
    if mode == "all" and scope:
        raise UsageError(
            f"api_dump_start: mode 'all' records everything and takes no scope, but scope is {list(scope)!r}: "
            "leave it out, or use mode 'list', 'range' or 'api_list'"
        )
    if mode == "range" and len(scope) != 2:
        raise UsageError(
            f"api_dump_start: mode 'range' takes two names in scope, the first and the last call, not {len(scope)}"
        )
    if mode != "all" and not scope:
        raise UsageError(f"api_dump_start: mode {mode!r} needs names in scope, and there are none")
    return list(scope)


def _read_name(mode: str, text: str) -> ScopeName:
    parsed = _parse_call(text) or _parse_call(f"{text}_{_DIRECTIONS[0]}")
    slot = _SLOT.fullmatch(text)
    if parsed is None and slot is not None and _parse_call(slot[1]) is not None:
        raise UsageError(
            f"api_dump_start: {text!r} in scope is one value of a call, and mode {mode!r} takes calls: "
            f"write {slot[1]!r}"
        )
    if parsed is None:
        raise UsageError(
            f"api_dump_start: {text!r} in scope is not the name of a call, which mode {mode!r} needs: write it as the "
            f"names in the info file begin, like {_EXAMPLE!r}, or without the direction for both"
        )
    return ScopeName(parsed.call, parsed.direction if text == str(parsed) else None)


def _parse_call(text: str) -> ApiName | None:
    try:
        parsed = parse_name(text)
    except ValueError:
        return None
    is_of_api_dump = isinstance(parsed, ApiName) and parsed.separator == "_" and parsed.direction in _DIRECTIONS
    return parsed if is_of_api_dump else None  # type: ignore[return-value]


def _read_keyword(text: str) -> str:
    keyword = make_keyword(text)
    if not keyword:
        raise UsageError(
            f"api_dump_start: {text!r} in scope is part of every name: write a part of a name, like 'relu'"
        )
    return keyword


def _check_choice(name: str, value: Any, accepted: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in accepted:
        advice = suggest(value, accepted)
        raise UsageError(
            f"api_dump_start: {name} {value!r} is not one of {', '.join(accepted)}{f'; {advice}' if advice else ''}"
        )


def _check_flag(function: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{function}: {name} {value!r} is not one of True, False")
