"""The mapping file: pairs that the user knows better. It has the last word.

    calls:
      Functional.gelu.0: Functional.gelu.1            both directions; with .forward or .backward only that one
      Module.head.Linear: Module.classifier.Linear    all calls of a module
    modules:
      encoder.layers: backbone.blocks                 and what is below them
      "encoder.*.attn": "blocks.*.attention"          what a * stood for is put where the * of the other name is
    tensors:
      Functional.linear.3.forward.input.1: Functional.matmul.2.forward.input.1

The file may come from anyone: it is bounded in size, read as plain data, and without anchors, which could blow it up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorprobe.config.plain_yaml import plain_loader
from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.regular_file import open_regular

SECTIONS = ("calls", "modules", "tensors")
_MAX_BYTES = 1_000_000
_EXAMPLE = (
    "Write it as\n\ncalls:\n  Functional.gelu.0: Functional.gelu.1\nmodules:\n  encoder.layers: backbone.blocks\n"
)


@dataclass(frozen=True)
class Mapping:
    """Names of the reference and of the candidate, as the user wrote them."""

    calls: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    origin: str = "the mapping"

    def __bool__(self) -> bool:
        return bool(self.calls or self.modules or self.tensors)


def read_mapping(source: str | Path | dict[str, Any] | None) -> Mapping:
    """A YAML file, or its content as a dict."""
    if source is None:
        return Mapping()
    if isinstance(source, dict):
        return _check(source, "the mapping")
    if not isinstance(source, (str, Path)):
        raise UsageError(f"mapping is {source!r}. Give the path of a YAML file, or a dict of what would stand in it.")
    return _check(_load(Path(source)), str(source))


def _load(path: Path) -> Any:
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The mapping file {path} cannot be read ({error.strerror or error}).") from None
    if len(content) > _MAX_BYTES:
        raise UsageError(f"The mapping file {path} is larger than {_MAX_BYTES:,} bytes. Use wildcards instead.")
    return _parse(content, str(path))


def _parse(content: bytes, origin: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            'A mapping file needs pyyaml: pip install "tensorprobe[compare]"; or give the mapping as a dict.'
        ) from None

    try:
        return yaml.load(content.decode("utf-8-sig"), plain_loader())
    except UnicodeDecodeError as error:
        raise UsageError(f"{origin} is not UTF-8 at byte {error.start}. Save it as UTF-8.") from None
    except RecursionError:
        raise UsageError(f"{origin} is nested too deeply. {_EXAMPLE}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{origin} is not YAML{_place(error)}.") from None
    except ValueError as error:  # an escape that is no character
        raise UsageError(f"{origin} is not YAML: {error}. Put names in quotes.") from None


def _place(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f": {problem}" if mark is None else f", line {mark.line + 1}: {problem}"


def _check(content: Any, origin: str) -> Mapping:
    if content is None:
        return Mapping(origin=origin)
    if not isinstance(content, dict):
        raise UsageError(f"{origin} holds {_describe(content)}, not sections. {_EXAMPLE}")
    sections: dict[str, dict[str, str]] = {}
    for section, entries in content.items():
        if section not in SECTIONS:
            hint = suggest(section, SECTIONS)
            raise UsageError(
                f"{origin}: {_describe(section)} is not one of the sections {', '.join(SECTIONS)}"
                + (f"; {hint}" if hint else ".")
            )
        sections[section] = _check_entries(entries, section, origin)
    calls, modules, tensors = (sections.get(section, {}) for section in SECTIONS)
    return Mapping(calls, modules, tensors, origin)


def _check_entries(entries: Any, section: str, origin: str) -> dict[str, str]:
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UsageError(f"{origin}: {section} holds {_describe(entries)}, not names with names. {_EXAMPLE}")
    checked: dict[str, str] = {}
    taken: dict[str, str] = {}
    for reference, candidate in entries.items():
        names = [_check_name(name, section, origin) for name in (reference, candidate)]
        if names[0].count("*") != names[1].count("*"):
            raise UsageError(
                f"{origin}: {section}: {names[0]} and {names[1]} have different numbers of *. "
                "What a * stands for in the one is put in its place in the other."
            )
        if names[1] in taken:
            raise UsageError(f"{origin}: {section}: both {taken[names[1]]} and {names[0]} are {names[1]}. Keep one.")
        checked[names[0]] = names[1]
        taken[names[1]] = names[0]
    return checked


def _check_name(name: Any, section: str, origin: str) -> str:
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)  # a module that is called 0
    if not isinstance(name, str):
        raise UsageError(f"{origin}: {section} holds {_describe(name)} where a name belongs. Put names in quotes.")
    return name


def _describe(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
