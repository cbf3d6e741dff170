"""Messages go through `logging`, under the name `tensorprobe`. A program that configures logging decides where they go,
whether it does so before or after tensorprobe is first used; in one that does not, they appear on stderr."""

from __future__ import annotations

import logging
import sys

from tensorprobe.foreign_text import clean_lines

_SHOWN_LEVEL = logging.INFO - 1  # lets INFO through, and is no level that a program would choose itself


class StandardError(logging.Handler):
    """Shows messages as `print` would, as long as the program has configured no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        is_alone = logging.getLogger("tensorprobe").handlers == [self] and not logging.getLogger().handlers
        if is_alone and sys.stderr is not None:
            print(clean_lines(self.format(record)), file=sys.stderr, flush=True)


def show_messages() -> None:
    """Make the messages visible where nobody has said otherwise."""
    logger = logging.getLogger("tensorprobe")
    if logger.handlers or logger.level != logging.NOTSET:
        return
    handler = StandardError()
    handler.setFormatter(logging.Formatter("[tensorprobe] %(message)s"))
    logger.addHandler(handler)
    logger.addFilter(_is_wanted)
    logger.setLevel(_SHOWN_LEVEL)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Where the program has configured logging and said nothing of `tensorprobe`, its own level holds."""
    root = logging.getLogger()
    is_ours = logging.getLogger("tensorprobe").level == _SHOWN_LEVEL
    return not (is_ours and root.handlers) or record.levelno >= root.level
