"""`tensorprobe serve`: the report in a browser, with the tensors behind it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import Rank, Step
from tensorprobe.cli.progress import total_progress_bar

Shown = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A folder with a compare.json, a dump_path, or the reference of two dumps to compare."
    ),
]
Candidate = Annotated[
    Path | None, typer.Argument(metavar="CANDIDATE", help="The other dump: the two are compared first.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on this machine; 0 takes a free port.")]
Open = Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")]
Truth = Annotated[
    bool, typer.Option("--truth", help="Of a single run: execute it again in float64, to see where it loses digits.")
]


def serve(
    path: Shown,
    candidate: Candidate = None,
    port: Port = 0,
    opens: Open = False,
    step: Step = None,
    rank: Rank = None,
    truth: Truth = False,
) -> None:
    """Show the report in a browser, with every tensor behind it.

    The page is that of `tensorprobe report`. The pictures of any tensor are made when you open it: from its file, or
    computed where task "replay" left it out. Only this machine is answered, and only with the token in the address.

    tensorprobe serve result                 a saved comparison, with compare.json

    tensorprobe serve good bad               two dumps, compared now

    tensorprobe serve dump_path --truth      one run, and where it loses digits

    tensorprobe serve result --port 8000     on a cluster; on your own machine:

    ssh -L 8000:127.0.0.1:8000 cluster       then open the printed address
    """
    from tensorprobe.serve.opening import Part, open_shown
    from tensorprobe.serve.server import check_packages, serve_page

    check_packages()
    with total_progress_bar("replaying" if truth else "comparing") as reach:
        shown = open_shown(path, candidate, Part(step, rank, truth), reach)
    serve_page(shown, port, lambda address: _tell(address, opens))


def _tell(address: str, opens: bool) -> None:
    typer.echo(f"{address}\nCtrl-C ends it.")
    if opens and not webbrowser.open(address):
        typer.echo("note: no browser could be opened; open the address yourself.", err=True)
