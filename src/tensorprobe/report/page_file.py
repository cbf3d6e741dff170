"""The page as a file. What renders it is imported only when a page is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.errors import UsageError
from tensorprobe.store import disk


def check_page() -> None:
    """Is there what makes pages? Asked before the long work."""
    from tensorprobe.report.page.document import check_document

    check_document()


def write_page(file: BinaryIO, data: dict[str, Any]) -> None:
    """The page of a document."""
    from tensorprobe.report.page.document import render

    file.write(render(data))


def write_page_file(path: Path, data: dict[str, Any]) -> None:
    """The same where the user wants it: whole or not at all."""
    try:
        with disk.open_whole(path) as file:
            write_page(file, data)
    except OSError as error:
        raise UsageError(f"{path} could not be written ({error.strerror or error}).") from error
