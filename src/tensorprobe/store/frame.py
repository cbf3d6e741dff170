"""One frame of a stack, as a line that a person can click on."""

from __future__ import annotations

import re

_FRAME = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<function>.+?),?\s*\n\s*(?P<code>.*)", re.DOTALL)


def describe_frame(frame: str) -> str:
    """`model.py:18 in forward: x = self.fc(x)`; a frame of another form as it is."""
    found = _FRAME.match(frame)
    if found is None:
        return frame.strip()
    place = f"{found['file']}:{found['line']} in {found['function']}"
    code = found["code"].strip()
    return f"{place}: {code}" if code else place
