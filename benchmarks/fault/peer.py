"""msprobe's compare on the same dumps. It has no verdict, only a table; there are two ways to read it from above.

`msprobe result`: the first row that its column Result does not call `pass`. `msprobe first difference`: the first row
in which a number differs at all. It has no kinds of verdict either, so any mark on the right call counts as exact.
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

WAYS = {"msprobe result": "result", "msprobe first difference": "difference"}


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

    def ask(self, reference: Path, candidate: Path, steps: int) -> tuple[dict[str, Saying], float]:
        """What each way of reading says. A table is of one step; the first step that says something counts."""
        began = time.perf_counter()
        sayings = dict.fromkeys(WAYS, Saying("agree"))
        for step in range(steps):
            files = (run / f"step{step}" / "rank" / "dump.json" for run in (reference, candidate))
            for way, saying in self._ask_step(*files).items():
                if sayings[way].verdict == "agree":
                    sayings[way] = saying
        return sayings, time.perf_counter() - began

    def _ask_step(self, reference: Path, candidate: Path) -> dict[str, Saying]:
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory() as output:
            wanted = {"reference": str(reference), "candidate": str(candidate), "output": output}
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "msprobe's process ended"}
        if "error" in answer:
            return dict.fromkeys(WAYS, Saying("error", text=answer["error"]))
        return {way: saying_of_row(answer["rows"][key]) for way, key in WAYS.items()}


def saying_of_row(row: list[str] | None) -> Saying:
    if row is None:
        return Saying("agree")
    reference_name, candidate_name, result = row
    return Saying("any", record_of(reference_name), record_of(candidate_name), result)


def record_of(tensor_name: str) -> tuple[str, ...]:
    """`Functional.linear.0.forward.input.0` is in `Functional.linear.0.forward`."""
    found = RECORD.match(tensor_name)
    return (found[1],) if found else ()
