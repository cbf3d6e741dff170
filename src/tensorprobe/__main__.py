"""`tensorprobe` and `python -m tensorprobe`: the one place where errors become messages and exit codes.

    0    all is well; also when the reader of a pipe has seen enough
    1    compare: the two runs differ
    2    the dump could not be read or compared, or the command was wrong
    130  Ctrl-C

An exception that nobody expected keeps its traceback, and is 2 as well: Python's own 1 would say that two runs differ.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Any

from tensorprobe.errors import TensorprobeError
from tensorprobe.foreign_text import clean_lines

_COMMAND_LINE_PACKAGES = ("typer", "rich", "click", "shellingham")


def main() -> None:
    """Run the command in sys.argv and exit."""
    try:
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)


def run() -> int:
    """Run the command in sys.argv; the exit code."""
    try:
        from tensorprobe.cli.main import StoppedError, app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _COMMAND_LINE_PACKAGES:
            raise
        _say(f'error: the command line needs {package}: pip install "tensorprobe[cli]"\n')
        return 2
    try:
        _run_app(app)
        sys.stdout.flush()
    except SystemExit as error:
        return _flush(error.code if isinstance(error.code, int) else int(error.code is not None))
    except TensorprobeError as error:
        _flush(0)
        _say(f"error: {error}\n")
        return 2
    except (StoppedError, BrokenPipeError) as error:
        _silence_stdout()
        return 130 if isinstance(error.__cause__, KeyboardInterrupt) else 0
    except Exception:
        _say(clean_lines(traceback.format_exc()))
        return 2
    return 0


def _run_app(app: Any) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name in a dump may hold any character
    app(prog_name="tensorprobe")


def _say(text: str) -> None:
    """On stderr. That nobody reads it does not change the exit code."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _flush(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    return code


def _silence_stdout() -> None:
    """The interpreter flushes stdout once more when it ends: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
