"""One recorded call as a script of its own, with its tensors beside it: what one attaches to a bug report.

The script needs the framework, not tensorprobe. It makes the call on the recorded inputs, forward and backward, once in
the recorded precision and once in float64, and prints what was recorded against both.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.replay import torch_repro
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.repro_argument import Script
from tensorprobe.replay.workspace import lay_out
from tensorprobe.run.leaf import Leaf
from tensorprobe.store.disk import open_whole, writing
from tensorprobe.store.layout import make_folder

SCRIPT = "repro.py"


def write_repro(program: Program, name: str, folder: Path) -> Path:
    """Write the script and its tensors there. UsageError where a call cannot be made again from its record."""
    maker = _find_maker(program)
    script = _make_script(program, name, maker)
    content = io.BytesIO()  # what torch writes itself does not say why it fails
    maker.write_tensors(content, {slot: _load(program, leaf) for slot, leaf in script.tensors.items()})
    with writing(folder):
        make_folder(folder)
        with open_whole(folder / maker.TENSORS) as file:
            file.write(content.getbuffer())
        with open_whole(folder / SCRIPT) as file:
            file.write(script.text.encode())
    return folder / SCRIPT


def make_text(program: Program, name: str) -> str:
    """The script alone, which needs no tensor to be written. UsageError as above."""
    return _make_script(program, name, _find_maker(program)).text


def _make_script(program: Program, name: str, maker: ModuleType) -> Script:
    operation = _find_call(program, name)
    try:
        script: Script = maker.make_script(program, operation)
    except (UnknownArgumentError, UnknownFunctionError) as error:
        raise UsageError(f"{name} cannot be made into a script: {error}") from error
    return script


def _find_call(program: Program, name: str) -> Operation:
    operation = next((call for call in program.calls() if call.name == name), None)
    if operation is None:
        advice = suggest(name, [call.name for call in program.calls()]) or "`tensorprobe show` lists them."
        raise UsageError(f"{program.rank.name} has no forward call {name!r}: {advice}")
    return operation


def _find_maker(program: Program) -> ModuleType:
    """Who writes scripts for the framework of the dump."""
    if not program.is_mindspore:
        return torch_repro
    try:
        import mindspore  # noqa: F401
    except ImportError:
        raise UsageError("a script for a call of MindSpore is made with MindSpore: pip install mindspore") from None
    from tensorprobe.replay import mindspore_repro

    return mindspore_repro


def _load(program: Program, leaf: Leaf) -> torch.Tensor:
    try:
        return lay_out(RecordedTensors(program.rank, torch.device("cpu")).load(leaf), leaf)
    except MissingContentError as error:
        raise UsageError(f"the call cannot be made into a script: {error}") from error
