"""Frameworks are imported only where they belong. (The arrows between packages are checked by import-linter.)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tensorprobe"
FRAMEWORKS = {"torch", "torch_npu", "triton", "mindspore", "msadapter"}
ALLOWED = ("capture/torch/", "capture/mindspore/", "pytorch/", "mindspore/", "replay/")
TRAINING_LIBRARIES = {
    "transformers",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "peft",
    "timm",
    "deepspeed",
    "ray",
}
CAPTURE_MAY_IMPORT = {"numpy", "tensorprobe", "torch", "torch_npu", "triton", "mindspore"}


def imported_packages(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_framework_folders_import_a_framework(path: Path) -> None:
    place = str(path.relative_to(SOURCE))
    if not place.startswith(ALLOWED):
        assert not imported_packages(path.read_text()) & FRAMEWORKS


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_integrations_import_a_training_library(path: Path) -> None:
    if path.parent != SOURCE / "integrations":
        assert not imported_packages(path.read_text()) & TRAINING_LIBRARIES


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "capture").rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_capture_needs_nothing_that_a_training_image_lacks(path: Path) -> None:
    import sys

    foreign = imported_packages(path.read_text()) - set(sys.stdlib_module_names) - CAPTURE_MAY_IMPORT
    assert not foreign


def test_the_rule_sees_an_import_inside_a_function() -> None:
    assert imported_packages("def f():\n    from torch.nn import Linear\n") == {"torch"}
