"""A small mistake, planted by an edit of one marked line, and the lines that are a right answer to "where is it?".

A line is marked by a comment at its end, `# @name` or `# @name @other`. The same mark may stand in both halves of a
file: the line of the reference and that of the candidate that compute the same thing. Either of them is a right answer.

Where a call is missing, or takes another operand, no call computes something wrong: the missing call is a right answer,
and so is the first one that takes the wrong value. The answers were written down, and checked by the values of a right
and a faulty run of one framework, before any comparison was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SIDES = ("reference", "candidate")
_MARK = re.compile(r"# ((?:@\w+ ?)+)$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    name: str
    at: str
    """Marks of the lines that may be named, with a blank between them."""
    right: str
    """This text, in a marked line of the faulty side …"""
    wrong: str
    """… becomes this."""
    edit: str = ""
    """The mark of the line that is edited, if it is not the first one of `at`."""
    side: str = "candidate"
    parameter: str = ""
    """The weights are wrong from the start: the reference's name of a parameter, which is a right answer too."""
    is_backward: bool = False
    """The loss of the first step stays as it is."""
    has_effect: bool = True
    """False: neither the loss nor a gradient changes by more than rounding."""
    steps: int = 1
    first_step: int = 0
    """The first step whose loss or gradients change."""
    second: tuple[str, str, str] | None = None
    """Another fault, further on: mark, right and wrong text. The first one is the answer."""

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        first = (self.edit or self.at.split()[0], self.right, self.wrong)
        return (first,) if self.second is None else (first, self.second)


def find_marks(line: str) -> list[str]:
    found = _MARK.search(line)
    return [] if found is None else [mark[1:] for mark in found[1].split()]


def find_lines(text: str, marks: str) -> frozenset[int]:
    """The numbers of the lines with one of these marks, counted from 1."""
    wanted = set(marks.split())
    lines = enumerate(text.splitlines(), 1)
    return frozenset(number for number, line in lines if wanted.intersection(find_marks(line)))


def remove_marks(text: str) -> str:
    """The text as somebody would have written it; no line moves."""
    return re.sub(rf"  {_MARK.pattern}", "", text, flags=re.MULTILINE)


def find_border(lines: list[str]) -> int:
    """The first line of the candidate: a Cell, or in PyTorch alone what comes after the reference's loss and finish."""
    for number, line in enumerate(lines):
        if "(nn.Cell)" in line:
            return number
    ends = ("def compute_reference_loss", "def finish_reference")
    last = max(number for number, line in enumerate(lines) if line.startswith(ends))
    return next(number for number in range(last + 1, len(lines)) if lines[number].startswith(("class ", "def ", "@")))


def plant(text: str, fault: Fault) -> str:
    """The text with the fault in it; no line moves."""
    lines = text.splitlines(keepends=True)
    border = find_border(lines)
    half = range(border) if fault.side == "reference" else range(border, len(lines))
    for mark, right, wrong in fault.edits:
        numbers = [number for number in half if mark in find_marks(lines[number]) and right in lines[number]]
        if len(numbers) != 1:
            raise ValueError(f"{fault.name}: {right!r} is in {len(numbers)} lines marked {mark!r}, not in one")
        lines[numbers[0]] = lines[numbers[0]].replace(right, wrong)
    return "".join(lines)
