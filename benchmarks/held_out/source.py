"""The files of pairs: where they are, and the module of one side, without its marks and with a fault or without."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from held_out.fault import Fault, plant, remove_marks

NETWORKS = Path(__file__).parent / "network"
REFACTORINGS = Path(__file__).parent / "refactor"
PAIRS = tuple(sorted(path.stem for path in NETWORKS.glob("*.py") if path.stem != "__init__"))
"""PyTorch and MindSpore."""
REFACTORS = tuple(sorted(path.stem for path in REFACTORINGS.glob("*.py") if path.stem != "__init__"))
"""PyTorch and PyTorch."""
LEARNING_RATE = 0.05
WORDS = {"pair": ("pytorch", "mindspore"), "refactor": ("reference", "candidate")}


def path_of(name: str) -> Path:
    return (REFACTORINGS if name in REFACTORS else NETWORKS) / f"{name}.py"


def files_of(name: str) -> tuple[str, str]:
    """The names of the files of both sides."""
    reference, candidate = WORDS["refactor" if name in REFACTORS else "pair"]
    return f"{name}_{reference}.py", f"{name}_{candidate}.py"


def file_of(name: str, side: str) -> str:
    return files_of(name)[side != "reference"]


def load_network(
    name: str, side: str, fault: Fault | None = None, folder: Path | None = None, is_double: bool = False
) -> ModuleType:
    """The module of a pair, without its marks: stacks show the text of lines, and no two programs share such comments.

    With a folder its file is written there, so that stacks find the text; the sides are files of different names.
    Double: what the text does in float32, whatever the network is in, is done in float64.
    """
    text = path_of(name).read_text()
    if fault is not None and fault.side == side:
        text = plant(text, fault)
    text = remove_marks(text)
    if is_double:
        text = text.replace("float32", "float64").replace(".float()", ".double()").replace("complex64", "complex128")
    path = Path(file_of(name, side))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / path
        path.write_text(text)
    module = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def bind_step(compute_loss: Callable[..., Any], step: int) -> Callable[..., Any]:
    if "step" not in inspect.signature(compute_loss).parameters:
        return compute_loss
    return lambda *arguments: compute_loss(*arguments, step=step)
