"""Where in the user's program a call was made.

On the hot path a stack is a tuple of numbers: the addresses of the code objects and the positions in them, up to the
enclosing module call, whose own stack is known. Text is made once per distinct stack, and source lines are read only
then.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_OWN_FOLDER = str(Path(__file__).resolve().parents[1]) + "/"
_MAX_STACKS = 50_000  # a program that keeps compiling new code would otherwise fill the memory


@dataclass(frozen=True, slots=True)
class Stack:
    """One distinct stack."""

    id: int
    frames: tuple[str, ...]
    """Innermost first, each `File path, line N, in function, \\n source line`."""
    caller: str | None
    """Which part of the framework made the call itself: "optimizer", "distributed" … None for the user's code."""
    codes: tuple[CodeType, ...]
    """Held so that the address of a code object in a key is not used again."""


class StackTable:
    """All distinct stacks of a session."""

    def __init__(self, is_noise: Callable[[str], bool], caller_of: Callable[[str], str | None]) -> None:
        self._is_noise = is_noise
        self._caller_of = caller_of
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._next_id = 0
        self._boundary = -1

    def set_boundary(self, code: CodeType) -> None:
        """The function that runs a module: a walk ends there, and goes on with the stack of that module call."""
        self._boundary = id(code)

    def capture(self, frame: FrameType | None, parent: Stack | None) -> Stack:
        """The stack that begins at `frame`, inside a module call that has the stack `parent`."""
        key = [-1 if parent is None else parent.id]
        current = frame
        while current is not None:
            address = id(current.f_code)
            if address == self._boundary and parent is not None:
                break
            key.append(address)
            key.append(current.f_lasti)
            current = current.f_back
        found = self._stacks.get(tuple(key))
        return found if found is not None else self._add(tuple(key), frame, parent)

    def _add(self, key: tuple[int, ...], frame: FrameType | None, parent: Stack | None) -> Stack:
        if len(self._stacks) >= _MAX_STACKS:
            self._stacks.clear()
        codes, frames = [], []
        caller: str | None = ""
        while frame is not None and not (id(frame.f_code) == self._boundary and parent is not None):
            codes.append(frame.f_code)
            path = frame.f_code.co_filename
            if not path.startswith(_OWN_FOLDER):
                if caller == "":
                    caller = self._caller_of(path)
                if not self._is_noise(path):
                    frames.append(describe_frame(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        outer: Sequence[str] = parent.frames if parent is not None else ()
        stack = Stack(self._next_id, (*frames, *outer), caller or None, tuple(codes))
        self._next_id += 1
        self._stacks[key] = stack
        return stack


def describe_frame(code: CodeType, line: int | None) -> str:
    """One line of a stack; without a source file (the prompt, `exec`) there is no source line."""
    source = linecache.getline(code.co_filename, line).strip() if line else ""
    return f"File {code.co_filename}, line {line or 0}, in {code.co_name}, \n {source}"
