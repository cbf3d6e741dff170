"""One attribute replaced for the time of a window, and put back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprobe.capture.framework import Undo


def replace(owner: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute; the undo restores what was there, or that nothing was."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, replacement)

    def undo() -> None:
        if vars(owner).get(name, missing) is not replacement:
            return  # somebody has patched over it: theirs stays, and ours passes calls through
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def run_all(undos: Sequence[Undo]) -> None:
    for undo in reversed(undos):
        undo()


def nothing() -> None:
    """The undo of what was not done."""
