"""A process that sends finished steps into a store: a line of JSON for each on its standard input, an answer for each
on its standard output.

It is a process of its own so that nothing of a store (its packages, their threads, their failures) is in the program
that is recorded; and so that it ends its work when that program is killed. What could not be sent is tried again, a few
times and once more at the end; then it stays where it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from tensorprobe.errors import TensorprobeError
from tensorprobe.store.upload import Target

_PAUSES_SECONDS = (0.5, 2.0)
"""Between the attempts at one folder, as long as none has failed."""


def serve(requests: Iterable[str], answer: Callable[[dict[str, Any]], None], root: Path, url: str) -> None:
    """Until the requests end."""
    try:
        target = Target(url)
        target.check()
    except (TensorprobeError, OSError) as error:
        answer({"refused": str(error)})
        return
    answer({"ready": True})
    failed: list[list[str]] = []
    for line in requests:
        places = json.loads(line)
        problem = _send(target, root, places, () if failed else _PAUSES_SECONDS)
        if problem is not None:
            failed.append(places)
        answer({"places": places, "error": problem})
    for places in failed:
        answer({"places": places, "error": _send(target, root, places, ()), "is_last": True})


def _send(target: Target, root: Path, places: list[str], pauses: tuple[float, ...]) -> str | None:
    """None, or why it could not be sent."""
    for pause in (*pauses, None):
        try:
            target.send(root, places, removes=True)
            return None
        except Exception as error:  # whatever a store raises, the folder stays and the next one is tried
            if pause is None:
                return str(error) or type(error).__name__
            time.sleep(pause)
    raise AssertionError  # the last attempt has returned


def main() -> None:
    """Its arguments: the folder of the dump, and its address."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a package prints is no answer
    serve(sys.stdin, lambda found: write_line(answers, found), Path(sys.argv[1]), sys.argv[2])


def write_line(file: TextIO, content: Any) -> None:
    try:
        file.write(json.dumps(content) + "\n")
        file.flush()
    except (BrokenPipeError, ValueError):
        pass  # the program was killed: the rest is sent without anybody who waits for it
