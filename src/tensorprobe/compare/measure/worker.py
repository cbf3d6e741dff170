"""A process that measures pairs: it reads lists of tasks from its standard input and writes one answer for each.

It is started as a program of its own and not by multiprocessing, which would run the user's script again in it or copy
the threads' locks of a notebook. It ends at once when its input ends, and so with the process that started it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, BinaryIO

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.measure.task import MeasureTask, measure_task

READY = "ready"
Answer = Measurement | tuple[BaseException, str]
"""A measurement; or an error that is to be raised, and where it came from."""


def serve(batches: Iterable[list[MeasureTask]], answers: BinaryIO) -> None:
    """Answer every task of every batch."""
    _write(answers, READY)
    for batch in batches:
        for task in batch:
            try:
                answer: Answer = measure_task(task)
            except Exception as error:
                answer = (error, traceback.format_exc())
            _write(answers, answer)


def main() -> None:
    """Standard output is for answers only: what anything else prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    batches: SimpleQueue[list[MeasureTask]] = SimpleQueue()
    threading.Thread(target=_read_batches, args=(sys.stdin.buffer, batches), daemon=True).start()
    try:
        serve(iter(batches.get, None), answers)
    except BrokenPipeError:
        os._exit(0)  # nobody waits for an answer any more; the thread still holds the input


def _read_batches(tasks: BinaryIO, batches: SimpleQueue[list[MeasureTask]]) -> None:
    """In a thread, so that the end of the input is seen in the middle of a long pair."""
    try:
        while True:
            batches.put(pickle.load(tasks))
    finally:
        os._exit(0)  # nobody waits for an answer any more


def _write(answers: BinaryIO, answer: Any) -> None:
    pickle.dump(answer, answers)
    answers.flush()
