"""Messages go through `logging`, under the name `tensorprobe`. A program that configures logging decides where they
go."""

from __future__ import annotations

import logging


def show_messages() -> None:
    """In a program that has not configured logging, show them on the standard error stream, as `print` would."""
    logger = logging.getLogger("tensorprobe")
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[tensorprobe] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
