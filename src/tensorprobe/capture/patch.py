"""Attributes replaced for the time of a window, and put back as they were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensorprobe.capture.framework import Undo

_MISSING = object()


def replace(owner: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute; the undo restores what was there, or that nothing was."""
    return replace_all([(owner, name, replacement)])


def replace_all(replacements: Iterable[tuple[Any, str, Any]]) -> Undo:
    """Set many attributes: owners, names and what is put there."""
    done: list[tuple[Any, str, Any, Any]] = []

    def undo() -> None:
        while done:
            owner, name, replacement, before = done.pop()
            if vars(owner).get(name, _MISSING) is not replacement:
                continue  # somebody has patched over it: theirs stays, and ours passes calls through
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    try:
        for owner, name, replacement in replacements:
            before = vars(owner).get(name, _MISSING)
            setattr(owner, name, replacement)
            done.append((owner, name, replacement, before))
    except BaseException:
        undo()
        raise
    return undo


def run_all(undos: Sequence[Undo]) -> None:
    for undo in reversed(undos):
        undo()


def nothing() -> None:
    """The undo of what was not done."""
