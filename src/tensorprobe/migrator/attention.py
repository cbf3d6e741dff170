"""What TroubleShooter says to its users, in its form: through `logging`, under the name `tensorprobe.migrator`, or
under TroubleShooter's own where a program imports it by that name.

2023-12-11 14:45:14,907 - tensorprobe.migrator - WARNING - [*User Attention*] The compare directory information: …

A program that has configured logging decides where it goes; in one that has not, it appears on stderr.
"""

from __future__ import annotations

import logging
import sys

from tensorprobe.capture.message import StandardError
from tensorprobe.foreign_text import clean_lines

_NAME = "tensorprobe.migrator"
_logger = logging.getLogger(_NAME)
_FORMAT = logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s")


def speak_as(name: str) -> None:
    """Let the name of another logger stand in what is said."""
    global _logger
    _logger = logging.getLogger(name)


def call_attention(message: str) -> None:
    """Say it once, now."""
    if not _logger.isEnabledFor(logging.WARNING):
        return
    words = clean_lines(f"[*User Attention*] {message}")
    if _is_configured():
        _logger.warning("%s", words)
    elif sys.stderr is not None:
        record = _logger.makeRecord(_logger.name, logging.WARNING, __file__, 0, words, (), None)
        print(_FORMAT.format(record), file=sys.stderr, flush=True)


def _is_configured() -> bool:
    """Has the program a handler of its own?"""
    names = {"", "tensorprobe", _NAME, _logger.name, _logger.name.partition(".")[0]}
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    return any(not isinstance(handler, (StandardError, logging.NullHandler)) for handler in handlers)
