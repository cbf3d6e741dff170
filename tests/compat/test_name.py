"""The names of other packages: what they hold, and that they are refused where their owners are installed too."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

import tensorprobe
from tests.compat.program import run_program, succeed

OWNERS = {"msprobe": ("mindstudio-probe", "26.2.0"), "troubleshooter": ("troubleshooter", "1.0.18")}
FOLDER_OF_PACKAGES = "import site, sys\nsite.addsitedir(sys.argv[1])\n"
"""A folder in which packages are installed, where Python looks for .pth files."""


def installed_files() -> list[str]:
    return [str(path) for path in metadata.files("tensorprobe-compat") or ()]


def install_into(folder: Path) -> None:
    """What pip does with the distribution: copy its files."""
    for path in metadata.files("tensorprobe-compat") or ():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(path.locate()), folder / path)


def install_owner(folder: Path, name: str) -> None:
    """What pip leaves of the original."""
    distribution, version = OWNERS[name]
    information = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("print('the original')\n")


def words_of_refusal(name: str) -> str:
    distribution, version = OWNERS[name]
    return (
        f"ImportError: import {name}: both {distribution} {version} and tensorprobe-compat are installed, and either "
        f"could be meant. For tensorprobe: pip uninstall {distribution}. For {distribution} {version}: pip uninstall "
        "tensorprobe-compat. No file of either is damaged by the other."
    )


def test_troubleshooter_holds_the_tools_of_tensorprobe() -> None:
    program = (
        "import troubleshooter as ts, tensorprobe, sys\n"
        "import troubleshooter.migrator\n"
        "import troubleshooter.widget\n"
        "from troubleshooter.migrator import compare_npy_dir\n"
        "assert ts.migrator is tensorprobe.migrator and ts.widget is tensorprobe.widget\n"
        "assert ts.save is tensorprobe.save and ts.save_grad is tensorprobe.save_grad\n"
        "print(sorted(ts.__all__), [name for name in ('torch', 'mindspore') if name in sys.modules])"
    )
    assert succeed(run_program("-c", program)).strip() == "['migrator', 'save', 'save_grad', 'widget'] []"


def test_msprobe_imports_no_framework_before_it_is_asked_for() -> None:
    program = "import msprobe, sys\nprint([name for name in ('torch', 'mindspore') if name in sys.modules])"
    assert succeed(run_program("-c", program)).strip() == "[]"


@pytest.mark.parametrize(
    ("face", "framework", "other"), [("pytorch", "torch", "mindspore"), ("mindspore", "mindspore", "pytorch")]
)
def test_a_face_says_which_framework_is_missing(face: str, framework: str, other: str) -> None:
    program = f"import sys\nsys.modules[{framework!r}] = None\nimport msprobe\nimport msprobe.{face}"
    ended = run_program("-c", program)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        f"ModuleNotFoundError: msprobe.{face} needs {framework}, which is not installed: install it, "
        f"or import msprobe.{other}"
    )


@pytest.mark.parametrize("name", OWNERS)
def test_beside_the_original_the_import_is_refused(tmp_path: Path, name: str) -> None:
    """It lies further back on the path."""
    install_owner(tmp_path, name)
    ended = run_program("-c", f"import sys\nsys.path.append({str(tmp_path)!r})\nimport {name}")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == words_of_refusal(name)


@pytest.mark.parametrize("name", OWNERS)
def test_in_one_folder_with_the_original_the_import_is_refused(tmp_path: Path, name: str) -> None:
    """There Python would find the original first."""
    install_owner(tmp_path, name)
    install_into(tmp_path)
    program = f"{FOLDER_OF_PACKAGES}import {name}"
    ended = run_program("-I", "-S", "-c", program, tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == words_of_refusal(name)
    (tmp_path / "tensorprobe_compat.pth").unlink()
    assert succeed(run_program("-I", "-S", "-c", program, tmp_path)) == "the original\n"


def test_other_imports_pass_the_guard(tmp_path: Path) -> None:
    install_into(tmp_path)
    program = f"{FOLDER_OF_PACKAGES}import json, sys\nprint(sys.meta_path[0].__name__, 'tensorprobe' in sys.modules)"
    assert succeed(run_program("-I", "-S", "-c", program, tmp_path)).strip() == "Guard False"


def test_no_file_has_the_path_of_a_file_of_the_originals() -> None:
    files = installed_files()
    assert {"msprobe.py", "troubleshooter.py", "tensorprobe_compat.pth"} <= set(files)
    assert not [path for path in files if path.startswith(("msprobe/", "troubleshooter/"))]


def test_it_has_the_version_of_tensorprobe_and_needs_it() -> None:
    assert metadata.version("tensorprobe-compat") == tensorprobe.__version__
    assert metadata.requires("tensorprobe-compat") == ["tensorprobe[compare]"]
