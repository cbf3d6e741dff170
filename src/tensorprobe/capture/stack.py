"""Where in the user's program a call was made.

On the hot path a stack is a tuple of numbers: the addresses of the code objects and the positions in them, up to the
enclosing module call, whose own stack is known. Text is made once per distinct stack, and source lines are read only
then. A program need not have a source file (the prompt, a notebook, `exec`, a lone .pyc): what is known is named.
"""

from __future__ import annotations

import linecache
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from tensorprobe.capture import bookkeeping

logger = logging.getLogger("tensorprobe")

OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep  # not resolved: as the paths of code objects are
_START_OF_PYTHON = frozenset(
    f"<frozen {module}>" for module in ("runpy", "zipimport", "importlib._bootstrap", "importlib._bootstrap_external")
)
_CELL_RUNNER_FILE = str(Path("IPython", "core", "interactiveshell.py"))
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
        self.caller_of = caller_of
        """Which part of the framework makes calls of its own in a source file."""
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
        is_of_program = True
        while frame is not None and not (id(frame.f_code) == self._boundary and parent is not None):
            codes.append(frame.f_code)
            path = frame.f_code.co_filename
            is_of_program = is_of_program and not runs_cell(frame.f_code)
            if is_of_program and path not in _START_OF_PYTHON and not path.startswith(OWN_FOLDER):
                if bookkeeping.keeps_books(frame.f_code) or (caller == "" and bookkeeping.is_loop(frame.f_code)):
                    caller = bookkeeping.CALLER
                elif caller == "":
                    caller = self.caller_of(path)
                if not self._is_noise(path):
                    frames.append(describe_frame(frame))
            frame = frame.f_back
        outer: Sequence[str] = parent.frames if parent is not None else ()
        stack = Stack(self._next_id, (*frames, *outer), caller or None, tuple(codes))
        self._next_id += 1
        self._stacks[key] = stack
        return stack


def runs_cell(code: CodeType) -> bool:
    """Is it what runs the cells of a notebook? Its callers are the notebook, not the program."""
    return code.co_name == "run_code" and code.co_filename.endswith(_CELL_RUNNER_FILE)


def describe_frame(frame: FrameType) -> str:
    """One line of a stack; the source line is empty where nobody has it."""
    code, line = frame.f_code, frame.f_lineno or 0
    return f"File {code.co_filename}, line {line}, in {code.co_name}, \n {read_source(frame, line)}"


def read_source(frame: FrameType, line: int) -> str:
    """A line of source from its file, from a notebook or from the loader of its module (a zip file)."""
    path, names = frame.f_code.co_filename, frame.f_globals
    if not line:
        return ""
    try:
        linecache.checkcache(path)  # a module may have been changed and loaded again
        # Of code that was made from a text, the loader of the module around it has another source.
        return linecache.getline(path, line, names if names.get("__file__") == path else None).strip()
    except Exception as error:  # a loader is foreign code; where the call was made is known without it
        logger.debug("no source of %s: %s", path, error)
        return ""
