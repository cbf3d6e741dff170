"""`tensorprobe init`: a configuration to start from."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.config.template import write_template
from tensorprobe.foreign_text import clean


class Framework(str, Enum):
    """Whose programs are recorded."""

    PYTORCH = "pytorch"
    MINDSPORE = "mindspore"


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("config.yaml"),
    framework: Annotated[Framework, typer.Option(help="Whose calls the comments show.")] = Framework.PYTORCH,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a configuration with every key, its default and what it does.

    tensorprobe init                                      config.yaml, for PyTorch

    tensorprobe init ms.yaml --framework mindspore        for MindSpore
    """
    write_template(path, framework.value, overwrites=force)
    typer.echo(f"written: {clean(str(path))}")
    typer.echo(f'next: PrecisionDebugger("{clean(str(path))}") in your program')
