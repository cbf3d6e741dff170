"""Plants a fault in a third-party model: one call of it is another one, and everything else is left as it is.

A method of one module, or a function of its file, is compiled again from its own source with one piece of text
replaced. Its lines keep their numbers, so that stacks name the line of the package's file.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Fault:
    name: str
    module: str
    """The path of the module that is changed; `""`: the model itself."""
    words: str
    """The functions that may be named, in PyTorch's words, with a blank between them."""
    right: str = ""
    wrong: str = ""
    """Texts of the same number of lines."""
    method: str = "forward"
    function: str = ""
    """A function of the module's file, edited in the place of a method: for all modules that call it."""
    setting: tuple[str, Any] | None = None
    """An attribute of the module, and its wrong value."""
    paths: str = ""
    """The modules in which the calls are, with a blank between them. Left out: `module` alone."""
    is_backward: bool = False
    has_effect: bool = True
    steps: int = 1
    first_step: int = 0
    """The fault comes with this step."""
    variant: str = ""
    """The candidate is another implementation too, see variant.py."""
    second: Fault | None = None

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(self.paths.split() or [self.module])

    @property
    def buffer(self) -> str:
        """The path of a buffer that is wrong from the start, which is a right answer too; `""`: there is none."""
        if self.setting is None or not isinstance(self.setting[1], torch.Tensor):
            return ""
        return f"{self.module}.{self.setting[0]}".strip(".")


@dataclass(frozen=True)
class Patch:
    undo: Callable[[], None]
    lines: frozenset[tuple[str, int]]
    """The edited lines: the name of the file, and the number. Empty for a setting."""


def plant(model: nn.Module, fault: Fault) -> Patch:
    module = model.get_submodule(fault.module)
    if fault.setting is not None:
        patch = _set(module, *fault.setting)
    elif fault.function:
        patch = _replace_function(module, fault)
    else:
        patch = _replace_method(module, fault)
    if fault.second is None:
        return patch
    second = plant(model, fault.second)
    return Patch(lambda: (second.undo(), patch.undo())[0], patch.lines)


def _set(module: nn.Module, name: str, value: Any) -> Patch:
    right = getattr(module, name)
    setattr(module, name, value.to(right.dtype) if isinstance(value, torch.Tensor) else value)
    return Patch(lambda: setattr(module, name, right), frozenset())


def _replace_method(module: nn.Module, fault: Fault) -> Patch:
    function, lines = _edit(getattr(type(module), fault.method), fault)
    setattr(module, fault.method, MethodType(function, module))
    return Patch(lambda: delattr(module, fault.method), lines)


def _replace_function(module: nn.Module, fault: Fault) -> Patch:
    file = sys.modules[type(module).__module__]
    right = getattr(file, fault.function)
    function, lines = _edit(right, fault)
    setattr(file, fault.function, function)
    return Patch(lambda: setattr(file, fault.function, right), lines)


def _edit(function: Callable[..., Any], fault: Fault) -> tuple[Callable[..., Any], frozenset[tuple[str, int]]]:
    """The function with the wrong text, without its decorators, and the lines that changed."""
    function = inspect.unwrap(function)
    source, first = inspect.getsourcelines(function)
    text = "".join(source)
    if text.count(fault.right) != 1 or fault.right.count("\n") != fault.wrong.count("\n"):
        raise ValueError(f"{fault.name}: {function.__qualname__} has {fault.right!r} {text.count(fault.right)} times")
    edited = text.replace(fault.right, fault.wrong)
    tree = ast.parse(textwrap.dedent(edited))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    path = inspect.getfile(function)
    made: dict[str, Any] = {}
    exec(compile(tree, path, "exec"), function.__globals__, made)
    pairs = zip(text.splitlines(), edited.splitlines(), strict=True)
    changed = {first + number for number, (one, other) in enumerate(pairs) if one != other}
    return made[function.__name__], frozenset((Path(path).name, number) for number in changed)
