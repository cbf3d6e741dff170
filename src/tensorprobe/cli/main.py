"""The application: its commands and what they share."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tensorprobe._version import __version__
from tensorprobe.cli.compare import compare
from tensorprobe.cli.compare_dirs import compare_dirs
from tensorprobe.cli.convert import convert
from tensorprobe.cli.export import export
from tensorprobe.cli.init import init
from tensorprobe.cli.recover import recover
from tensorprobe.cli.replay import replay
from tensorprobe.cli.report import report
from tensorprobe.cli.repro import repro
from tensorprobe.cli.run import PARSING, run
from tensorprobe.cli.serve import serve
from tensorprobe.cli.show import show
from tensorprobe.cli.tensor import tensor
from tensorprobe.cli.truth import truth
from tensorprobe.cli.upload import upload


class StoppedError(Exception):
    """Somebody pressed Ctrl-C, or closed the pipe: `__cause__` says which."""


class Commands(TyperGroup):
    """Lets Ctrl-C and a closed pipe through to `main`; typer would answer them with messages and codes of its own."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            raise StoppedError from error


if os.environ.get("NO_COLOR"):
    from typer import rich_utils  # takes as long as all commands together, and only the help needs it

    rich_utils.COLOR_SYSTEM = None  # of the help; what the commands print goes to `make_console`

app = typer.Typer(
    cls=Commands,
    name="tensorprobe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command(context_settings=PARSING)(run)
app.command()(show)
app.command()(compare)
app.command()(report)
app.command()(truth)
app.command()(serve)
app.command()(export)
app.command()(replay)
app.command()(repro)
app.command()(tensor)
app.command("compare-dirs")(compare_dirs)
app.command()(recover)
app.command()(upload)
app.command()(convert)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tensorprobe {__version__}")
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """See what every operation of a training run computed, and where two runs first differ.

    [bold]Record a program[/bold] that needs no change for it:

        tensorprobe run train.py

    [bold]A first look[/bold] at a dump, what is wrong with it on top:

        tensorprobe show dump_path

    [bold]One call[/bold] in full, with its inputs and its source line:

        tensorprobe show dump_path --step 0 --filter Functional.softmax.3

    [bold]Two runs[/bold], and the first call that went wrong:

        tensorprobe compare good_dump bad_dump

    [bold]A page[/bold] to look at, of two runs or of one:

        tensorprobe compare good_dump bad_dump -o result

        tensorprobe report dump_path

    [bold]Two folders[/bold] of .npy files, pair by pair:

        tensorprobe compare-dirs good_folder bad_folder

    [bold]After a kill[/bold], close the files that the run left open:

        tensorprobe recover dump_path

    [bold]Into a store[/bold], where all commands read it too:

        tensorprobe upload dump_path s3://bucket/run

    [bold]Saved files[/bold] of MindSpore's Print, or of torch, as .npy files:

        tensorprobe convert print_file npy_files

    Exit codes: 0 all is well, 1 two runs differ, 2 a dump could not be read or compared.
    """
