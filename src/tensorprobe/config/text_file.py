"""The text of a file that a user wrote, or an error that says why there is none."""

from __future__ import annotations

from pathlib import Path

from tensorprobe.errors import ConfigError
from tensorprobe.regular_file import open_regular


def read_text(file: str) -> str:
    """The text of the file; `file` is the path as the user wrote it, for the text of errors."""
    path = Path(file)
    try:
        # utf-8-sig also takes the mark that Windows editors put first.
        with open_regular(path) as content:
            return content.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist (looked for {path.absolute()}); correct the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder; name a file in it") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; give a file that you may read") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
