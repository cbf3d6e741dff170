"""Lines on a terminal or into a pipe.

A terminal has a width: text wraps beside its label, a table is cut. What goes into a file or a pipe goes whole, so that
it does not depend on the window.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

_LINES_AT_ONCE = 200
_MIN_ROOM = 12


def make_console(to_stderr: bool = False) -> Console:
    """A console that writes no escape sequence where NO_COLOR is set to anything: rich alone would still write bold."""
    return Console(stderr=to_stderr, color_system=None if os.environ.get("NO_COLOR") else "auto")


@dataclass(frozen=True)
class Fact:
    """A label and what it says; on a terminal the text wraps beside its label."""

    label: Text
    text: Text


def print_facts(console: Console, facts: Iterable[Fact]) -> None:
    """Each label with its text beside it."""
    for fact in facts:
        room = max(console.width - len(fact.label), _MIN_ROOM)
        wrapped = fact.text.wrap(console, room, overflow="fold") if console.is_terminal else [fact.text]
        labels = [fact.label, *[Text(" " * len(fact.label))] * (len(wrapped) - 1)]
        print_lines(console, [Text.assemble(label, line) for label, line in zip(labels, wrapped, strict=False)])


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Lines as they are: cut at the width of a terminal, whole into a pipe."""
    if not console.is_terminal:
        for line in lines:
            console.file.write(line.plain + "\n")
        return
    waiting = list(lines)
    for start in range(0, len(waiting), _LINES_AT_ONCE):
        piece = Text("\n").join(waiting[start : start + _LINES_AT_ONCE])
        console.print(piece, no_wrap=True, overflow="ellipsis", highlight=False)


def print_command(console: Console, label: str, command: str) -> None:
    """A command to copy: a line break of ours in it would be copied too, so a narrow terminal wraps it itself."""
    line = Text.assemble((label, "bold"), command)
    if console.is_terminal:
        console.print(line, soft_wrap=True, highlight=False)
    else:
        console.file.write(line.plain + "\n")
