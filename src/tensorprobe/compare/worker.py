"""A process that measures pairs: it reads lists of tasks from its standard input and writes one answer for each.

It is started as a program of its own and not by multiprocessing, which would run the user's script again in it or copy
the threads' locks of a notebook. It ends when its input ends, which also happens when the process that started it dies.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from tensorprobe.compare.measurement import Measurement
from tensorprobe.compare.task import MeasureTask, measure_task

READY = "ready"
Answer = Measurement | tuple[BaseException, str]
"""A measurement; or an error that is to be raised, and where it came from."""


def serve(tasks: BinaryIO, answers: BinaryIO, measure: Callable[[MeasureTask], Measurement] = measure_task) -> None:
    """Answer until the input ends."""
    _write(answers, READY)
    while True:
        try:
            batch = pickle.load(tasks)
        except EOFError:
            return
        for task in batch:
            try:
                answer: Answer = measure(task)
            except Exception as error:
                answer = (error, traceback.format_exc())
            _write(answers, answer)


def main() -> None:
    """Standard output is for answers only: what anything else prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(1)  # nobody is left to be told


def _write(answers: BinaryIO, answer: Any) -> None:
    pickle.dump(answer, answers)
    answers.flush()
