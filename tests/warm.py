"""Users' programs in a process whose framework is imported already (`warm_process.py`)."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_PROGRAM = Path(__file__).with_name("warm_process.py")

_MODULES = {
    "torch": ["torch", "torch._dynamo"],  # the first optimizer that is made imports the second
    "ranks": ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"],
    "mindspore": ["mindspore"],
}
"""What is imported before the program is known."""


class WarmProcess:
    """Runs one program after another."""

    def __init__(self, framework: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *_MODULES[framework]],
            env={name: value for name, value in environment.items() if not name.startswith("TENSORPROBE")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.close)

    def run(
        self, folder: Path, arguments: list[str], environments: Sequence[Mapping[str, str]]
    ) -> list[subprocess.CompletedProcess[str]]:
        """The program with each of these variables, at the same time, when all have ended."""
        with TemporaryDirectory() as name:
            streams = [
                {stream: str(Path(name, f"{stream}{number}")) for stream in ("stdout", "stderr")}
                for number in range(len(environments))
            ]
            same = {"folder": str(folder), "arguments": arguments}
            request = [
                {**same, "environment": dict(environment), **paths}
                for environment, paths in zip(environments, streams, strict=True)
            ]
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            codes = json.loads(self._process.stdout.readline())
            return [
                subprocess.CompletedProcess(
                    arguments, code, **{stream: Path(path).read_text("utf-8") for stream, path in paths.items()}
                )
                for code, paths in zip(codes, streams, strict=True)
            ]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_idle: dict[str, list[WarmProcess]] = {}


def run_warm(
    framework: str, folder: Path, arguments: list[str], *environments: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Run a script with its arguments in `folder`, once with each of these variables, all at the same time."""
    idle = _idle.setdefault(framework, [])
    process = idle.pop() if idle else WarmProcess(framework, environments[0])
    try:
        return process.run(folder, arguments, environments)
    finally:
        idle.append(process)
