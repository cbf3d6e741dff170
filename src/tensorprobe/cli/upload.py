"""`tensorprobe upload`: a dump into a store."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.progress import total_progress_bar
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.model.count import count_noun
from tensorprobe.model.url import read_url
from tensorprobe.store.upload import Target, find_unsent


def upload(
    folder: Annotated[Path, typer.Argument(metavar="DUMP", help="A dump_path of this machine.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where it goes: s3://bucket/run.")],
) -> None:
    """Send a dump into a store.

    tensorprobe upload dump_path s3://bucket/run

    What a program could not send itself, because its store was not reachable, lies in the folder that it named; this
    sends it. Nothing is removed here.
    """
    url = read_url(address)
    if url is None:
        raise UsageError(f"{address} is no address of a store. Give one such as s3://bucket/run.")
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder. Give a dump_path of this machine.")
    found = find_unsent(folder)
    if not found:
        raise UsageError(f"{folder} holds nothing to send: no step0/rank/dump.json or the like.")
    target = Target(url)
    target.check()
    size_bytes = 0
    with total_progress_bar("sending") as reach:
        for number, places in enumerate(found, 1):
            size_bytes += target.send(folder, places).size_bytes
            reach(number, len(found))
    typer.echo(f"{count_noun(len(found), 'folder')} sent, {size_bytes / 1e6:,.1f} MB")
    typer.echo(clean(f"next: tensorprobe show {shlex.quote(url)}"))
