"""One frame of a stack, as a line that a person can click on."""

from __future__ import annotations

from functools import lru_cache

from tensorprobe.foreign_text import shorten

_MAX_CHARACTERS = 4000


@lru_cache(maxsize=4096)  # many calls are on one line
def describe_frame(frame: str) -> str:
    """`model.py:18 in forward: x = self.fc(x)`; a frame of another form as it is.

    >>> describe_frame("File model.py, line 18, in forward, \\n x = self.fc(x)")
    'model.py:18 in forward: x = self.fc(x)'
    """
    head, has_code, code = frame.partition("\n")
    start, _, function = head.rstrip().removesuffix(",").rpartition(", in ")
    file, _, line = start.rpartition(", line ")
    if not (has_code and file.startswith("File ") and line.isdecimal() and function):
        return shorten(frame.strip(), _MAX_CHARACTERS)
    place = f"{file.removeprefix('File ')}:{line} in {function}"
    code = code.strip()
    return shorten(f"{place}: {code}" if code else place, _MAX_CHARACTERS)
