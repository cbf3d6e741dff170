"""An environment in which tensorprobe.pth is installed, and programs that are started in it; or without it, faster."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from tensorprobe.launch.setting import LaunchSetting
from tensorprobe.store.reader import open_dump
from tests.integration.script import SOURCE
from tests.integration.script import make_environment as make_variables
from tests.length import PATIENCE_SECONDS
from tests.warm import run_warm

_VARIABLES = ("RANK", "WORLD_SIZE", "PYTHONPATH", "PYTHONHOME")


def make_environment(folder: Path) -> Path:
    """A virtual environment with what this one has, and the start file; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=PATIENCE_SECONDS)
    packages = next(folder.glob("lib/python*/site-packages"))
    parents = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "a_parent.pth").write_text("\n".join([str(SOURCE), *parents]) + "\n")
    shutil.copy(SOURCE / "tensorprobe.pth", packages)
    return folder / "bin" / "python"


def run_program(
    python: Path, folder: Path, *arguments: str, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in `folder`; it must end with this exit code."""
    inherited = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    path = os.pathsep.join((str(python.parent), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    ended = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={**inherited, "PATH": path, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == code, ended.stderr
    return ended


def run_recorded(
    python: Path, folder: Path, *arguments: str, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`tensorprobe run ARGUMENTS`."""
    return run_program(python, folder, "-m", "tensorprobe", "run", *arguments, code=code, **variables)


_START = """
import runpy, sys
import tensorprobe_start

tensorprobe_start.start()
tensorprobe_start.begin(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_plain(
    folder: Path, script: str, *arguments: str, framework: str = "torch", code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in `folder`, in a process that has imported its framework; it must end with this exit code."""
    (ended,) = run_warm(framework, folder, [script, *arguments], {**make_variables(), **variables})
    assert ended.returncode == code, ended.stderr
    return ended


def run_watched(
    folder: Path, script: str, *arguments: str, framework: str = "torch", code: int = 0, **setting: str
) -> subprocess.CompletedProcess[str]:
    """The same as `tensorprobe run` with this setting does it, once the program has imported its framework."""
    (folder / "start.py").write_text(_START)
    paths = {name: str(folder / setting[name]) for name in ("output", "config_path") if name in setting}
    variables = LaunchSetting(**{**setting, **paths}).as_environment()
    return run_plain(folder, "start.py", framework, script, *arguments, framework=framework, code=code, **variables)


def names_of(dump: Path) -> dict[str, list[str]]:
    """The records of each step and rank, in their order."""
    return {rank.name: [record.name for record in rank.records()] for rank in open_dump(dump).ranks()}
