"""`tensorprobe export`: a dump in the format of another tool."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.option import DumpPath, Rank, Step
from tensorprobe.errors import UsageError
from tensorprobe.foreign_text import clean
from tensorprobe.store.reader import Dump, open_dump


class Tool(str, Enum):
    """Whose format it is."""

    TENSORBOARD = "tensorboard"
    MODEL_EXPLORER = "model-explorer"


To = Annotated[Tool, typer.Option("--to", help="The tool that is to show it.")]
Output = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder for the files.")]
Compare = Annotated[
    Path | None,
    typer.Option(
        "--compare",
        metavar="FILE",
        help="model-explorer: a compare.json with this dump; its errors become data of the nodes.",
    ),
]


def export(
    path: DumpPath,
    to: To,
    output: Output,
    compare: Compare = None,
    step: Step = None,
    rank: Rank = None,
) -> None:
    """Write a dump for TensorBoard or for Model Explorer.

    tensorboard: norm, max, min and mean of every result as scalars along the steps, and histograms of what was saved.
    Each rank is a run of its own.

    tensorprobe export dump_path --to tensorboard -o events

    tensorboard --logdir events

    model-explorer: a graph for each step and rank. Modules are layers, calls are nodes, edges are the data flow. Norms,
    counts of NaN and Inf, and the errors of a comparison colour the nodes.

    tensorprobe export dump_path --to model-explorer -o graphs

    tensorprobe export candidate --to model-explorer -o graphs --compare result/compare.json

    model-explorer graphs/graph.json
    """
    _check(output, to, compare)
    dump = open_dump(path).select(step, rank)
    if to is Tool.TENSORBOARD:
        written, following = _write_tensorboard(dump, output)
    else:
        written, following = _write_model_explorer(dump, output, path, compare)
    for file in written:
        typer.echo(f"written: {clean(str(file))}")
    typer.echo(f"next: {clean(following)}")


def _check(output: Path, to: Tool, compare: Path | None) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not an empty folder: give another one, and nothing is lost.")
    if compare is not None and to is not Tool.MODEL_EXPLORER:
        raise UsageError("--compare is for --to model-explorer: TensorBoard has no place for errors. Leave it out.")


def _write_tensorboard(dump: Dump, output: Path) -> tuple[list[Path], str]:
    """What was written, and the command that shows it."""
    from tensorprobe.export.tensorboard import write_tensorboard

    return write_tensorboard(dump, output), f"tensorboard --logdir {shlex.quote(str(output))}"


def _write_model_explorer(dump: Dump, output: Path, path: Path, compare: Path | None) -> tuple[list[Path], str]:
    from tensorprobe.export.compared_error import read_errors
    from tensorprobe.export.model_explorer import write_model_explorer

    written = write_model_explorer(dump, output, read_errors(compare, path) if compare else None)
    graph, *data = (shlex.quote(str(file)) for file in written)
    return written, f"model-explorer {graph} --node_data_paths={','.join(data)}"
