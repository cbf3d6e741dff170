"""Programs without a source file of their own: the prompt, `python -m`, a notebook, a lone .pyc, a zip file. They are
recorded as any other, and their stacks name what is known."""

from __future__ import annotations

import py_compile
import sys
import zipapp
from pathlib import Path

import pytest

from tensorprobe.store.reader import RankDump, open_dump
from tests.integration.script import messages, run_python, run_script

PROGRAM = """\
import torch
from torch import nn
from tensorprobe.pytorch import PrecisionDebugger

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        return torch.sin(self.fc(x))

net = Net()
debugger = PrecisionDebugger(dump_path="dump", level="mix")
debugger.start(net)
net(torch.ones(2, 4)).sum().backward()
debugger.stop()
debugger.step()
"""
INNER, OUTER = (
    next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if part in line)
    for part in ("torch.sin", ".backward()")
)
INNER_SOURCE, OUTER_SOURCE = (PROGRAM.splitlines()[number - 1].strip() for number in (INNER, OUTER))

# Runs two cells as IPython does: compiled under a name that is no file, with their text in linecache.
NOTEBOOK = """
import linecache, pathlib, sys
text = pathlib.Path("cells.txt").read_text()
namespace = {"__name__": "__main__"}
for number, cell in enumerate(text.split("net = Net()\\n")):
    name = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), namespace)
    namespace["net"] = namespace["Net"]()
"""


def recorded(folder: Path) -> RankDump:
    """What the program left; all of its calls are there."""
    (rank,) = open_dump(folder / "dump").ranks()
    assert rank.is_complete and not rank.problems and not rank.run["coverage"]["failed"]
    names = [record.name for record in rank.records()]
    assert {"Module.Net.forward.0", "Torch.sin.0.forward", "Torch.sin.0.backward", "Module.Net.backward.0"} <= set(
        names
    )
    return rank


def stack(folder: Path) -> tuple[str, ...]:
    return recorded(folder).stack("Torch.sin.0.forward")


def frames(path: object) -> tuple[str, str]:
    """The stack of a program that has its source."""
    return (
        f"File {path}, line {INNER}, in forward, \n {INNER_SOURCE}",
        f"File {path}, line {OUTER}, in <module>, \n {OUTER_SOURCE}",
    )


def test_what_is_typed_at_the_prompt_is_recorded(tmp_path: Path) -> None:
    ended = run_python(tmp_path, "-i", stdin=PROGRAM)
    inner, outer = stack(tmp_path)
    if sys.version_info < (3, 13):  # later prompts keep what was typed
        line = INNER - PROGRAM.splitlines().index("class Net(nn.Module):")
        assert inner == f"File <stdin>, line {line}, in forward, \n "
        assert outer == "File <stdin>, line 1, in <module>, \n "
    assert "step 0: " in ended.stderr


@pytest.mark.long  # the prompt shows what has no source, too
def test_a_program_from_standard_input_is_recorded(tmp_path: Path) -> None:
    ended = run_python(tmp_path, "-", stdin=PROGRAM)
    inner, outer = stack(tmp_path)
    assert inner.startswith(f"File <stdin>, line {INNER}, in forward, \n")
    assert outer.startswith(f"File <stdin>, line {OUTER}, in <module>, \n")
    assert len(messages(ended)) == 1


def test_a_package_that_is_run_with_m_is_recorded(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    run_python(tmp_path, "-m", "package")
    assert stack(tmp_path)[:2] == frames(package / "__main__.py")
    assert sys.version_info < (3, 11) or len(stack(tmp_path)) == 2


def test_the_cells_of_a_notebook_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "cells.txt").write_text(PROGRAM)
    run_script(tmp_path, NOTEBOOK)
    inner, outer, *_ = stack(tmp_path)
    assert inner == f"File /tmp/ipykernel_1/0.py, line {INNER}, in forward, \n {INNER_SOURCE}"
    assert outer == f"File /tmp/ipykernel_1/1.py, line {OUTER - INNER - 2}, in <module>, \n {OUTER_SOURCE}"


def test_a_program_without_its_source_is_recorded(tmp_path: Path) -> None:
    source = tmp_path / "inner.py"
    source.write_text(PROGRAM)
    py_compile.compile(str(source), cfile=str(tmp_path / "inner.pyc"), dfile="inner.py", doraise=True)
    source.unlink()
    run_python(tmp_path, "-c", "import inner")
    assert stack(tmp_path) == (
        f"File inner.py, line {INNER}, in forward, \n ",
        f"File inner.py, line {OUTER}, in <module>, \n ",
        "File <string>, line 1, in <module>, \n ",
    )


def test_a_program_in_a_zip_file_is_recorded_with_its_source(tmp_path: Path) -> None:
    folder, archive = tmp_path / "app", tmp_path / "app.pyz"
    folder.mkdir()
    (folder / "inner.py").write_text(PROGRAM)
    (folder / "__main__.py").write_text("import inner\n")
    zipapp.create_archive(folder, archive)
    run_python(tmp_path, str(archive))
    assert stack(tmp_path)[:2] == frames(archive / "inner.py")
