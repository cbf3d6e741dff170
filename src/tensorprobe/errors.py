"""What tensorprobe raises.

TensorprobeError
├── ConfigError      the configuration, or an argument that stands for one of its keys, is wrong
├── UsageError       a call came at the wrong time or with the wrong argument
├── NonFiniteError   on_nonfinite "stop" has found NaN or Inf
└── DumpError        a dump cannot be found or read

Libraries raise these; only `main` turns them into a message and an exit code. A failure inside capture,
once it runs, never raises into the user's program: it is logged once and counted.
"""

from __future__ import annotations

import importlib

from tensorprobe.foreign_text import clean_lines


class TensorprobeError(Exception):
    """Base of all errors that tensorprobe raises on purpose; its text says what to do instead.

    It may quote a name from a dump, and whoever shows it (a traceback, a log, `main`) shows it as it is.
    """

    def __str__(self) -> str:
        return clean_lines(super().__str__())


class ConfigError(TensorprobeError):
    """A wrong key, type or value in a configuration."""


class UsageError(TensorprobeError):
    """A call that cannot work as it was made."""


class NonFiniteError(TensorprobeError):
    """The first NaN or Inf, in a session that was asked to stop there. The one error that is meant to reach the user's
    program while it is recorded."""


class DumpError(TensorprobeError):
    """A dump that is missing or cannot be read."""


def require_framework(module: str, face: str, install: str) -> None:
    """Import a framework; where it is not installed, say what to install. An ImportError, as of any other module."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        text = f"{face} records programs of {module}, which is not installed here: {install}"
        raise ModuleNotFoundError(
            f"{text}. Reading and comparing dumps (tensorprobe show, tensorprobe compare) works without it.",
            name=module,
        ) from None
