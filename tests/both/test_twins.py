"""PyTorch's part and MindSpore's are twins: the faces have the same calls, files of one name the same functions, with
the same arguments. Where they cannot, the reason stands here."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tensorprobe.mindspore
import tensorprobe.pytorch

CAPTURE = Path(__file__).parents[2] / "src" / "tensorprobe" / "capture"
FOLDERS = CAPTURE / "torch", CAPTURE / "mindspore"
SHARED_FILES = sorted(set.intersection(*({path.name for path in folder.glob("*.py")} for folder in FOLDERS)))
OWN_NAMES = {"TorchFramework": "Framework", "MindSporeFramework": "Framework"} | {
    "TorchReader": "Reader",
    "MindSporeReader": "Reader",
}

DIFFERENT = {
    "call_mode.CallMode.__init__": "MindSpore's mode only counts where no model was given",
    "collective.Collectives.__init__": "PyTorch's collectives are seen by its mode as well",
    "collective.Collectives.run": "MindSpore's are patched one by one, and know the frame of their call",
    "compiled.CompiledRegions.__init__": "PyTorch has one mode to put aside; MindSpore a list of patches",
    "digest.as_bytes": "MindSpore's tensors are looked at as arrays of numpy",
    "digest.crc32_digest": "MindSpore's tensors are looked at as arrays of numpy",
    "digest.hash_digest": "MindSpore's tensors are looked at as arrays of numpy",
    "generator.describe_generator": "PyTorch's calls are given a generator; MindSpore's draw from those of the process",
    "gradient.GradientTracer.begin": "a cell of MindSpore that is differentiated itself begins the graph",
    "hook_plan.HookPlan.add_output": "a node of MindSpore is found by its tensor, which may have several",
    "hook_plan.Span.__init__": "MindSpore has no counter of nodes to ask: the last one that was seen is given",
    "module_call.ModuleNames.__init__": "MindSpore has two dialects, its own and MSAdapter's",
    "module_call.ModuleRunner.__init__": "modules in other threads need PyTorch's mode, which belongs to a thread",
    "undefined_memory.UndefinedStorage.__init__": "PyTorch's storages are held weakly; MindSpore has none",
}
"""Functions of one name with other arguments, and why."""


def signatures(path: Path) -> dict[str, list[str]]:
    """The arguments of all public functions and methods of a file, without their types."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            add_function(found, node.name, node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    add_function(found, f"{OWN_NAMES.get(node.name, node.name)}.{item.name}", item)
    return found


def add_function(found: dict[str, list[str]], name: str, node: ast.FunctionDef) -> None:
    if not node.name.startswith("_") or node.name == "__init__":
        given = node.args
        names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        found[name] = names + [f"*, {argument.arg}" for argument in given.kwonlyargs]
        found[name] += [
            ast.unparse(default) for default in (*given.defaults, *given.kw_defaults) if default is not None
        ]


def differences(file: str) -> list[str]:
    first, second = (signatures(folder / file) for folder in FOLDERS)
    stem = file.removesuffix(".py")
    return [f"{stem}.{name}" for name in sorted(first.keys() & second.keys()) if first[name] != second[name]]


@pytest.mark.parametrize("file", SHARED_FILES)
def test_functions_of_one_name_in_files_of_one_name_have_the_same_arguments(file: str) -> None:
    assert [name for name in differences(file) if not DIFFERENT.get(name)] == []


def test_every_exception_is_still_needed_and_has_its_reason() -> None:
    found = {name for file in SHARED_FILES for name in differences(file)}
    assert set(DIFFERENT) == found and all(DIFFERENT.values())


@pytest.mark.parametrize("kind", ["Framework", "Reader"])
def test_the_adapters_answer_the_same_questions(kind: str) -> None:
    file = f"{kind.lower()}.py"
    protocol = signatures(CAPTURE / "framework.py")
    wanted = {name.split(".")[1] for name in protocol if name.split(".")[0] in (kind, f"Tensor{kind}")}
    for folder in FOLDERS:
        methods = {name.split(".")[1] for name in signatures(folder / file) if name.startswith(f"{kind}.")}
        assert wanted <= methods, folder


def test_most_files_have_a_twin() -> None:
    assert len(SHARED_FILES) >= 15


def test_the_faces_have_the_same_names() -> None:
    assert sorted(tensorprobe.pytorch.__all__) == sorted(tensorprobe.mindspore.__all__)


@pytest.mark.parametrize("name", ["save", "save_grad", "seed_all", "step"])
def test_a_function_has_the_same_arguments_in_both_faces(name: str) -> None:
    assert arguments(tensorprobe.pytorch, name) == arguments(tensorprobe.mindspore, name)


def test_the_debugger_has_the_same_methods_with_the_same_arguments_in_both_faces() -> None:
    first, second = tensorprobe.pytorch.PrecisionDebugger, tensorprobe.mindspore.PrecisionDebugger
    names = {name for name in dir(first) if not name.startswith("_")}
    assert names == {name for name in dir(second) if not name.startswith("_")}
    assert {"start", "stop", "step", "save", "forward_backward_dump_end"} <= names
    for name in names - {"framework"}:
        assert arguments(first, name) == arguments(second, name)
    assert inspect.signature(first) == inspect.signature(second)


def arguments(owner: ModuleType | type, name: str) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(getattr(owner, name)).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]
