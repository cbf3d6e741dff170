"""`tensorprobe convert`: saved files of other kinds as .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorprobe.cli.progress import total_progress_bar
from tensorprobe.errors import DumpError
from tensorprobe.foreign_text import clean
from tensorprobe.widget.convert import convert as convert_files


def convert(
    file: Annotated[
        Path, typer.Argument(help="A print file of MindSpore, a .pt file, or a folder of .pt files.", metavar="FILE")
    ],
    folder: Annotated[Path, typer.Argument(help="Where the .npy files go; it is made.", metavar="DIR")],
) -> None:
    """Turn saved files into .npy files, which numpy reads and two folders of which can be compared.

    tensorprobe convert print_file npy_files     what MindSpore printed there

    tensorprobe convert dump_path npy_files      every .pt file, in all folders

    tensorprobe convert x.pt npy_files           one of them

    A print file is what MindSpore writes to its print_file_path; of what is in it, the tensors are taken that
    save(…, output_mode="print") has printed, and numbered in their order.

    Neither framework is needed, and nothing is unpickled. bfloat16 and float8 become float32, which loses nothing.

    Exit codes: 0 all is converted, 2 something could not be read; the rest is converted all the same.
    """
    with total_progress_bar("converting") as reach:
        done = convert_files(file, folder, reach)
    typer.echo(f"{len(done.written)} file{'s' * (len(done.written) != 1)} written to {clean(str(folder))}")
    if done.errors:
        raise DumpError("\n".join(done.errors))
