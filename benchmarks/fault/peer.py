"""msprobe's compare on the same dumps: what it names is the first row of its table that it does not call `pass`.

It has no verdict of its own and no kinds, so any mark on the right call counts as exact.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

from fault.score import Saying

WORKER = Path(__file__).with_name("msprobe_worker.py")
RECORD = re.compile(
    r"^(.+?\.(?:forward|backward)(?:\.\d+(?=\.(?:input|output|parameters|kwargs)))?|.+?\.parameters_grad)"
)


class Msprobe:
    """One process that answers for all pairs."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, reference: Path, candidate: Path, steps: int) -> tuple[Saying, float]:
        """Step by step, as its table is of one step; the first that is not all `pass` counts."""
        began = time.perf_counter()
        saying = Saying("agree")
        for step in range(steps):
            saying = self._ask_step(*(run / f"step{step}" / "rank" / "dump.json" for run in (reference, candidate)))
            if saying.verdict != "agree":
                break
        return saying, time.perf_counter() - began

    def _ask_step(self, reference: Path, candidate: Path) -> Saying:
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory() as output:
            wanted = {"reference": str(reference), "candidate": str(candidate), "output": output}
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "msprobe's process ended"}
        if "error" in answer:
            return Saying("error", text=answer["error"])
        if answer["row"] is None:
            return Saying("agree")
        reference_name, candidate_name, result = answer["row"]
        return Saying("any", record_of(reference_name), record_of(candidate_name), result)


def record_of(tensor_name: str) -> tuple[str, ...]:
    """`Functional.linear.0.forward.input.0` is in `Functional.linear.0.forward`."""
    found = RECORD.match(tensor_name)
    return (found[1],) if found else ()
