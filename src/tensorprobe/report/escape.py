"""Names come from a dump, and a dump may come from anyone: what is printed or written of them does nothing."""

from __future__ import annotations


def clean(text: str) -> str:
    """Control characters and halves of surrogate pairs as escapes: a name must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shorten(text: str, length: int) -> str:
    """At most so many characters; what is cut ends in an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
