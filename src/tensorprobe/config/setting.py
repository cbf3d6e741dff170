"""One value with the key and the place it was written at, so that every error names all three."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorprobe.errors import ConfigError

_MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class Source:
    """A file, a section of it, or (without a file) the arguments of a call."""

    file: str | None = None
    section: str | None = None

    def key_path(self, key: str) -> str:
        """`statistics.scope`: the key as a reader of the file finds it."""
        return f"{self.section}.{key}" if self.section else key

    def place(self, key: str) -> str:
        """`in config.json, key "statistics.scope"`, or `argument "scope"`."""
        if self.file is None:
            return f'argument "{key}"'
        return f'in {self.file}, key "{self.key_path(key)}"'


ARGUMENTS = Source()


@dataclass(frozen=True)
class Setting:
    """A key, the value a user gave it, and where."""

    key: str
    value: object
    source: Source = ARGUMENTS

    def of_item(self, item: object) -> Setting:
        """The same key, with one entry of its list as the value."""
        return replace(self, value=item)

    def error(self, problem: str, advice: str = "") -> ConfigError:
        """`level 'L3' is not one of … (in config.json, key "level"); advice`."""
        text = f"{self.key} {show_value(self.value)} {problem} ({self.source.place(self.key)})"
        return ConfigError(f"{text}; {advice}" if advice else text)


def show_value(value: object) -> str:
    """The value as Python writes it, cut where it would hide the rest of the message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested beyond all reason; an integer of thousands of digits
        text = f"a {type(value).__name__} that is too large"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "…"
