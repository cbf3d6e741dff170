"""`tensorprobe recover`: close the files that a killed run left open."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.progress import progress_bar
from tensorprobe.foreign_text import clean
from tensorprobe.model.url import read_path, read_url, show_location
from tensorprobe.store import stored_file
from tensorprobe.store.recover import recover_dump
from tensorprobe.store.stored_recovery import recover_stored


def recover(
    path: Annotated[Path, typer.Argument(help="A dump_path, or a step or rank folder in it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Even if the process that writes it seems to be alive.")
    ] = False,
) -> None:
    """Close the files that a killed run left open. Every whole record is kept; a line that was cut is dropped.

    tensorprobe recover dump_path

    A complete dump is never touched, and a second call finds nothing to do. `show` also reads a dump that was not
    recovered; other tools need the closed files.
    """
    with progress_bar("recovering", is_long=True, every=1) as advance:
        url = read_url(path)
        if url is None:
            done = recover_dump(read_path(path), force=force, on_folder=lambda _: advance())
        else:
            done = recover_stored(url, force=force, on_folder=lambda _: advance())
    for recovery in done:
        typer.echo(clean(stored_file.show(recovery.folder)))
        for action in recovery.actions:
            typer.echo(f"  {clean(action)}")
    next_command = f"next: tensorprobe show {shlex.quote(show_location(path))}"
    typer.echo(clean(next_command if done else f"nothing to do: every file of {show_location(path)} is complete"))
