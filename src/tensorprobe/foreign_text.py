"""Text that others wrote: a name in a dump, the name of a file, what an exception says of them.

It may hold anything, also what steers a terminal or turns the direction of writing. All of it that is printed or
written goes through `clean`.
"""

from __future__ import annotations


def clean(text: str) -> str:
    """Control characters and halves of surrogate pairs as escapes: a name must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def clean_lines(text: str) -> str:
    """The same for a text of ours that quotes others: its line breaks stay."""
    return "\n".join(map(clean, text.split("\n")))


def shorten(text: str, length: int) -> str:
    """At most so many characters; what is cut ends in an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
