"""Arguments and options that several commands have: one wording for all of them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

DumpPath = Annotated[Path, typer.Argument(metavar="DUMP", help="A dump_path, or a step or rank folder in it.")]
Step = Annotated[int | None, typer.Option(help="Only this step.")]
Rank = Annotated[int | None, typer.Option(help="Only this rank.")]
Device = Annotated[str, typer.Option(help="Where to replay: cpu or cuda.")]
Processes = Annotated[int | None, typer.Option(min=1, help="As many as there are cores, if left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON.")]


class Format(str, Enum):
    """How the result is printed."""

    TEXT = "text"
    JSON = "json"


OldFormat = Annotated[Format, typer.Option("--format", hidden=True)]
"""How `--json` was spelt in some commands."""
