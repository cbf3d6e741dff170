"""The public names, and that importing the package imports no framework."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tensorprobe
from tests.length import PATIENCE_SECONDS

SOURCE = Path(__file__).parents[1] / "src"
FRAMEWORKS = ("torch", "mindspore", "torch_npu", "tensorflow", "jax")
PUBLIC = [
    "ConfigError",
    "DumpError",
    "TensorprobeError",
    "UsageError",
    "__version__",
    "assert_runs_agree",
    "capture",
    "check",
    "compare",
    "meaning",
    "migrator",
    "save",
    "save_grad",
    "truth",
    "widget",
]
PACKAGES = ("migrator", "widget")
PUBLIC_OF_FACES = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]
FACES = {"torch": "tensorprobe.pytorch", "mindspore": "tensorprobe.mindspore"}

SHOW_NAMES = "print(*[n for n, v in vars(face).items() if n[0] != '_' and not isinstance(v, types.ModuleType)])"


def run_fresh(program: str) -> str:
    """What a program prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@cache
def show_face(framework: str) -> list[str]:
    """What its face lists, what it shows, and the frameworks that it imports: of one process."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    program = (
        f"import {FACES[framework]} as face, sys, types\n"
        "assert all(hasattr(face, name) for name in face.__all__)\n"
        f"print(*face.__all__)\n{SHOW_NAMES}\n"
        f"print(*[name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    return run_fresh(program).splitlines()[-3:]


def imported_frameworks(statement: str) -> list[str]:
    program = f"{statement}\nimport sys\nprint(*[name for name in {FRAMEWORKS} if name in sys.modules])"
    return run_fresh(program).split()


def test_the_names_of_the_package_are_exactly_these() -> None:
    assert sorted(tensorprobe.__all__) == PUBLIC
    assert all(hasattr(tensorprobe, name) for name in PUBLIC)


def test_the_package_shows_no_other_names_than_its_own_modules() -> None:
    assert sorted(run_fresh(f"import tensorprobe as face, types\n{SHOW_NAMES}").split()) == [
        name for name in PUBLIC if name not in ("__version__", *PACKAGES)
    ]


@pytest.mark.parametrize("framework", FACES)
def test_the_names_of_a_face_are_exactly_these(framework: str) -> None:
    listed, shown, _ = show_face(framework)
    assert sorted(listed.split()) == sorted(shown.split()) == PUBLIC_OF_FACES


@pytest.mark.parametrize("framework", FACES)
def test_a_face_imports_its_own_framework_only(framework: str) -> None:
    assert show_face(framework)[-1].split() == [framework]


@pytest.mark.parametrize(
    "statement",
    [
        "import tensorprobe",
        "import tensorprobe.store.reader, tensorprobe.config",
        "from tensorprobe.capture.session import Session",
        "import tensorprobe.integrations",
        "import tensorprobe.pytest_plugin",
    ],
)
def test_importing_it_imports_no_framework(statement: str) -> None:
    assert imported_frameworks(statement) == []


def test_the_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax.py").write_text("")
    statement = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import jax"
    assert imported_frameworks(statement) == ["jax"]


def test_capture_stays_the_function_when_the_package_of_that_name_is_imported() -> None:
    program = (
        "import tensorprobe\n"
        "import tensorprobe.capture.session\n"
        "from tensorprobe.capture.session import Session\n"
        "assert tensorprobe.capture.__module__ == 'tensorprobe.capture.context'\n"
        "print(callable(tensorprobe.capture), Session.__name__)"
    )
    assert run_fresh(program) == "True Session"


def test_capture_without_a_framework_says_what_to_do() -> None:
    program = (
        "import tensorprobe\ntry:\n    tensorprobe.capture()\nexcept tensorprobe.UsageError as error:\n    print(error)"
    )
    assert run_fresh(program) == (
        "tensorprobe.capture() without a model: import torch or mindspore first, so that it is known what to capture"
    )


@pytest.mark.parametrize("name", ["tensorprobe", "tensorprobe.pytest_plugin"])
def test_importing_the_package_imports_nothing_but_numpy(name: str) -> None:
    heavy = (
        "yaml",
        "ml_dtypes",
        "xlsxwriter",
        "prettytable",
        "tqdm",
        "pandas",
        "typer",
        "rich",
        "multiprocessing.pool",
        "tensorprobe.compare.engine",
        "tensorprobe.check.engine",
        "tensorprobe.check.golden_run",
    )
    program = f"import {name}, sys\nprint(*[name for name in {heavy} if name in sys.modules])"
    assert run_fresh(program) == ""


@pytest.mark.parametrize(("framework", "face"), FACES.items())
def test_a_face_without_its_framework_says_what_to_install(framework: str, face: str) -> None:
    told = run_fresh(
        f"""
import sys
sys.modules["{framework}"] = None
try:
    import {face}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    )
    assert told.startswith(f"{framework} {face} records programs of {framework}, which is not installed here: ")
    assert f"pip install {framework}" in told


def test_the_wheel_says_what_it_is() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    versions = [word.rpartition(" ")[2] for word in project["classifiers"] if "Python :: 3." in word]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert not any(name in text for text in project["dependencies"] for name in FRAMEWORKS)
