"""Begins to record a program that does not know of it. Imported when Python starts, by `tensorprobe.pth`, and only if a
variable asks for it (docs/run.md). Its import alone does nothing.

Standard library only, until the program itself has imported PyTorch or MindSpore: numpy and the frameworks read
settings when they are loaded, which the program may not have made yet. Nothing in here may stop a program from
starting, or raise in it.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

FRAMEWORKS = ("torch", "mindspore")
ROOT_VARIABLE = "TENSORPROBE_ROOT"
"""The process whose end tells that nothing was recorded: not its children, nor the workers that it starts."""
COMMAND_VARIABLE = "TENSORPROBE_COMMAND"
"""Set where it was `tensorprobe run` that started the program."""
OUTPUT_VARIABLE = "TENSORPROBE_OUTPUT"
_DUMP_FILES = ("dump.json", "dump.json.part")


def say(text: str) -> None:
    """On stderr, as the other messages are. That nobody can read it changes nothing."""
    try:
        sys.stderr.write(f"[tensorprobe] {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # there is no stderr, or it is closed
        return


def list_dumps(output: str) -> set[tuple[str, int]]:
    """The dumps in a folder, each with the time of its last change."""
    found: set[tuple[str, int]] = set()
    for step in _list_folder(output):
        for rank in _list_folder(step) if os.path.basename(step).startswith("step") else ():  # noqa: PTH119
            for name in _DUMP_FILES:
                path = os.path.join(rank, name)  # noqa: PTH118  pathlib takes longer to import than all of this
                if os.path.isfile(path):  # noqa: PTH113
                    found.add((path, os.stat(path).st_mtime_ns))  # noqa: PTH116
    return found


def _list_folder(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []


class FrameworkWatch:
    """Stands first among the finders of modules, and calls `begin` when a framework has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in FRAMEWORKS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                follow_import(name, spec.loader)
                return spec
        return None


def follow_import(name: str, loader: Any) -> None:
    """Call `begin` after the loader has executed its module; the loader is then as it was."""
    execute = getattr(loader, "exec_module", None)
    if execute is None or "exec_module" in getattr(loader, "__dict__", {"exec_module": None}):
        return

    def exec_module(module: Any) -> None:
        del loader.exec_module
        execute(module)
        begin(name)

    loader.exec_module = exec_module


def begin(framework: str) -> None:
    """The program has imported a framework."""
    if program is None or _is_own_command():
        return
    try:
        from tensorprobe.launch.program import begin_program

        begin_program(framework, program.set_output)
    except Exception as error:
        refuse(str(error), f"this program is not recorded: {error}")


class Program:
    """This process, as far as it is known when Python starts."""

    def __init__(self) -> None:
        self.is_root = os.environ.get(ROOT_VARIABLE, "") in ("", str(os.getpid()))
        self.problem: str | None = None
        """Why nothing can be recorded; it has been said."""
        self._output = os.environ.get(OUTPUT_VARIABLE)
        self._earlier = list_dumps(self._output) if self._output else set()
        self._pid = os.getpid()
        os.environ[ROOT_VARIABLE] = os.environ.get(ROOT_VARIABLE) or str(self._pid)

    def set_output(self, folder: str) -> None:
        """Where the dump goes, if only the configuration says so."""
        if self._output is None:
            self._output, self._earlier = folder, list_dumps(folder)

    def report(self) -> None:
        """The process ends: say what was recorded, or why nothing was."""
        if os.getpid() != self._pid or _is_own_command() or _is_started_by_program():  # a forked child
            return
        launched = sys.modules.get("tensorprobe.launch.program")
        summary = launched.describe_recording() if launched is not None else None
        if summary is None and launched is not None and self._output is not None and self._is_recorded_by_children():
            summary = launched.describe_children(self._output)
        if summary is not None:
            say(summary)
        elif self._is_to_explain():
            say(f"nothing was recorded: {self._explain()}")

    def _is_recorded_by_children(self) -> bool:
        """Has the program started processes by `multiprocessing`, which say nothing themselves, and is there a dump?"""
        has_started = any(
            name in sys.modules for name in ("multiprocessing.popen_fork", "multiprocessing.popen_spawn_win32")
        )
        return has_started and self._output is not None and list_dumps(self._output) != self._earlier

    def _is_to_explain(self) -> bool:
        """Other programs run in an environment with these variables, too: only those with a framework count, unless
        `tensorprobe run` was given this very program."""
        is_first = os.environ.get("RANK", os.environ.get("RANK_ID", "0")) in ("", "0")
        is_meant = os.environ.get(COMMAND_VARIABLE) is not None or any(name in sys.modules for name in FRAMEWORKS)
        if not (self.is_root and is_first and is_meant) or self.problem is not None:
            return False
        return self._output is None or list_dumps(self._output) == self._earlier

    def _explain(self) -> str:
        if not any(name in sys.modules for name in FRAMEWORKS):
            return "the program has imported neither torch nor mindspore"
        launched = sys.modules.get("tensorprobe.launch.program")
        reason = launched.explain_silence() if launched is not None else None
        return str(
            reason
            or "the program has called no model (torch.nn.Module, mindspore.nn.Cell) outside of compiled functions"
        )


program: Program | None = None
"""None where nobody has asked for a recording."""


def start() -> None:
    """Wait for the framework. What is registered first runs last: the sessions are closed when the report is made."""
    global program
    if program is None:
        program = Program()
        sys.meta_path.insert(0, FrameworkWatch())
        atexit.register(program.report)


def refuse(problem: str, message: str) -> None:
    """Nothing is recorded, or nothing more: say why, once."""
    if program is not None and program.problem is None:
        program.problem = problem
        say(message)


def _is_started_by_program() -> bool:
    """Is this a child that the program has started by `multiprocessing`? The program tells of it."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_own_command() -> bool:
    """Is this process a command of ours, such as one that replays a dump?"""
    return "tensorprobe.cli" in sys.modules
