"""capture.py for MindSpore, PyNative mode on the CPU: one process for each case, which take their steps in turns.

MindSpore hands operations to threads of its own and goes on, unless `launch_blocking()` comes before the first of them.
Capture looks at every result when its call returns, so it waits for each: what it costs is measured against the plain
program that waits too. The plain program that does not wait stands beside it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from capture import LEVELS, write_config

WARM_UP = 3
HEADER = ("case", "ms", "ratio", "MB/step", "files", "loss")
ROW = "{:34} {:>9} {:>7} {:>9} {:>6}  {}"
PLAIN = "plain"
OTHERS = {"asynchronous": "plain, asynchronous", "idle": "installed, not started"}

Step = dict[str, Any]


def run(options: argparse.Namespace) -> None:
    if options.case is not None:
        serve(options.case, options.profile)
        return
    levels = [f"{level} {way}" for way in options.way or ["statistics"] for level in options.level or LEVELS]
    cases = [PLAIN, *OTHERS, *levels]
    workers = {case: Worker(case, options.profile) for case in cases}
    print(f"mindspore {workers[PLAIN].version}, PyNative on {os.cpu_count()} cores, {options.repeat} rounds")
    rounds = [{case: workers[case].step() for case in cases} for _ in range(options.repeat + WARM_UP)][WARM_UP:]
    print(ROW.format(*HEADER))
    for case in cases:
        sizes = workers[case].finish()
        print(format_row(case, [(turn[PLAIN], turn[case]) for turn in rounds], sizes))


def format_row(case: str, pairs: list[tuple[Step, Step]], sizes: tuple[float, int]) -> str:
    ratio = statistics.median(step["seconds"] / plain["seconds"] for plain, step in pairs)
    milliseconds = 1e3 * statistics.median(step["seconds"] for _, step in pairs)
    is_identical = all(step["loss"] == plain["loss"] for plain, step in pairs)
    loss = "bit-identical" if is_identical else "CHANGED"
    return ROW.format(OTHERS.get(case, case), f"{milliseconds:.1f}", f"{ratio:.2f}x", f"{sizes[0]:.2f}", sizes[1], loss)


class Worker:
    """The process of one case: makes a step when it is told to."""

    def __init__(self, case: str, profile: str | None) -> None:
        command = [sys.executable, str(Path(__file__).with_name("capture.py")), "--framework", "mindspore"]
        command += ["--case", case] + (["--profile", profile] if profile else [])
        environment = {"GLOG_v": "3", **os.environ}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.version = self._ask("")["version"]

    def step(self) -> Step:
        return self._ask("step")

    def finish(self) -> tuple[float, int]:
        """The megabytes and the number of the files of one step."""
        sizes = self._ask("end")
        self._process.wait()
        return sizes["megabytes"], sizes["files"]

    def _ask(self, word: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a case ended early, with code {self._process.wait()}")
        return json.loads(answer)


def serve(case: str, profile: str | None) -> None:
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    if case != "asynchronous":
        ms.runtime.launch_blocking()
    from gpt_mindspore import CPU, make_program

    logging.disable(logging.INFO)
    program = make_program(CPU)
    input()
    answer(version=ms.__version__)
    with tempfile.TemporaryDirectory() as folder:
        level, _, way = case.partition(" ")
        debugger = None if case in (PLAIN, "asynchronous") else make_debugger(Path(folder), level, way)
        if case == "idle":  # a window that was opened and closed
            debugger.start(program.model)
            debugger.stop()
            debugger.step()
        is_captured = level in LEVELS
        while input() == "step":
            profiler = cProfile.Profile() if profile and is_captured else None
            began = time.perf_counter()
            run_step = captured_step if is_captured else plain_step
            loss = profiler.runcall(run_step, program, debugger) if profiler else run_step(program, debugger)
            content = loss.asnumpy().tobytes().hex()
            answer(seconds=time.perf_counter() - began, loss=content)
            if profiler and profile:
                profiler.dump_stats(profile)
        files = [path.stat() for path in Path(folder).glob("step1/**/*") if path.is_file()]
        megabytes = sum({file.st_ino: file.st_size for file in files}.values()) / 1e6
    answer(megabytes=megabytes, files=len(files))


def answer(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def plain_step(program: Any, _debugger: Any) -> Any:
    """Ends when the weights are updated: that is awaited too."""
    loss, gradients = program.forward_backward()
    program.update(gradients)
    program.wait()
    return loss


def captured_step(program: Any, debugger: Any) -> Any:
    debugger.start(program.model)
    loss, gradients = program.forward_backward()
    debugger.stop()
    program.update(gradients)
    debugger.step()
    program.wait()
    return loss


def make_debugger(folder: Path, level: str, way: str) -> Any:
    from tensorprobe.mindspore import PrecisionDebugger

    return PrecisionDebugger(write_config(folder, level if way else "mix", way or "statistics"))
