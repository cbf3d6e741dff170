"""What `tensorprobe run` becomes: the program itself, as Python or a launcher would start it, with the variables that
ask for a recording. Nothing of ours stays around it, so its output, signals and exit code are its own."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import tensorprobe_start
from tensorprobe.errors import UsageError
from tensorprobe.launch.setting import VARIABLES, LaunchSetting
from tensorprobe.model.url import show_location

_START_FILE = "tensorprobe.pth"
_FALLBACK_FOLDER = Path(__file__).parent / "fallback"
_PYTHON_SUFFIXES = (".py", ".pyc", ".pyw", ".pyz", ".zip")


def start_program(arguments: Sequence[str], setting: LaunchSetting) -> NoReturn:
    """Become the program: a script, `-m` and a module, or a launcher. Mistakes are told before it starts."""
    setting.load_step_at()
    output = show_location(setting.load().dump_path)
    command = find_command(arguments)
    environment = make_environment(LaunchSetting(**{**vars(setting), "output": output}), os.environ)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.name == "posix":
        os.execve(command[0], command, environment)
    sys.exit(subprocess.call(command, env=environment))  # Windows would let the shell go on meanwhile


def find_command(arguments: Sequence[str]) -> list[str]:
    """The command with its arguments; its first word is the path of what is executed."""
    first = arguments[0] if arguments else ""
    interpreter = [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]
    if first == "-m" and len(arguments) > 1:
        return [*interpreter, *arguments]
    if first.startswith("-") or not first:
        what = f"there is no option {first}" if first not in ("", "-m") else "what is to run is missing"
        raise UsageError(f"{what}: write tensorprobe run [OPTIONS] SCRIPT or -m MODULE, then its own arguments")
    path = Path(first)
    launcher = None if path.is_dir() or path.suffix in _PYTHON_SUFFIXES else shutil.which(first)
    if launcher is not None:
        return [launcher, *arguments[1:]]
    if not path.exists():
        raise UsageError(f"there is no file {first} here ({Path.cwd()}), and no command of this name")
    return [*interpreter, *arguments]


def make_environment(setting: LaunchSetting, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of the program, for this process: it keeps its number when it becomes the program."""
    kept = {name: value for name, value in inherited.items() if name not in VARIABLES}
    marks = {tensorprobe_start.ROOT_VARIABLE: str(os.getpid()), tensorprobe_start.COMMAND_VARIABLE: "1"}
    environment = {**kept, **setting.as_environment(), **marks}
    if not has_start_file():  # run from a source tree, or installed with --target
        paths = [str(_FALLBACK_FOLDER), *filter(None, [inherited.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def has_start_file() -> bool:
    """Does Python look at the file by which programs are recorded?"""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return any(Path(folder, _START_FILE).is_file() for folder in folders)
