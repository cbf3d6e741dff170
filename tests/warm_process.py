"""A process that has imported a framework, and becomes a user's program each time one is asked for: the import takes
longer than most programs of the tests.

Run as a program, with the names of the framework's modules; it reads one request a line, with one program or several
that run at the same time, and forks. A child has the arguments, folder, variables and streams that the request says,
runs the script as `__main__`, and ends as any Python ends: with its exit handlers, threads and signals. Only what the
libraries of the framework take apart after that, for a third of a second, is left to the system. Nothing but the
framework is imported, and no tensor is made, before the fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import types
from typing import Any


def read_line() -> str:
    """From the descriptor itself: sys.stdin is for the program."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return ""
        line += byte
    return line.decode()


def become(program: dict[str, Any]) -> tuple[types.CodeType, dict[str, Any]]:
    """Take over what the request says of this program; its code and its variables."""
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, program["stdout"], new), (2, program["stderr"], new)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    script = program["arguments"][0]
    sys.argv = program["arguments"]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # noqa: PTH100, PTH120
    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(script)  # noqa: PTH100
    sys.modules["__main__"] = main
    with open(script, encoding="utf-8") as file:  # noqa: PTH123
        return compile(file.read(), script, "exec"), main.__dict__


def serve() -> tuple[types.CodeType, dict[str, Any]] | None:
    """In the parent None, at its end; in a child its program."""
    while line := read_line():
        children = []
        for program in json.loads(line):
            child = os.fork()
            if not child:
                return become(program)
            children.append(child)
        os.write(1, json.dumps(wait_for(children)).encode() + b"\n")
    return None


def wait_for(children: list[int]) -> list[int]:
    """Their exit codes. As a launcher does, the others are ended when one of them has failed."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child]:
            for other in set(children) - codes.keys():
                os.kill(other, signal.SIGTERM)
    return [codes[child] for child in children]


def end_without_destructors() -> None:
    """Python has ended before they would run. Handlers are called from the last to the first: this one comes before all
    that the libraries asked for when they were loaded."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # in glibc
        libc.on_exit(libc._exit, None)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    for name in sys.argv[1:]:
        importlib.import_module(name)
    end_without_destructors()
    gc.collect()
    gc.freeze()  # a child need not look at what the framework has made
    program = serve()
    if program is None:
        os._exit(0)
    exec(*program)
