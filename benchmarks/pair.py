"""Plain and captured steps of a training program, in turns in one process; each case in a process of its own."""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from disk import DiskTurn, format_turns, write_zeros
from training_program import Program

from capture import write_config

WARM_UP = 3
HEADER = ("tool", "level", "way", "plain ms", "ms", "ratio", "MB/step", "files", "+peak MB", "loss")
ROW = "{:12} {:5} {:11} {:>9} {:>9} {:>7} {:>9} {:>6} {:>9}  {}"


def describe_place(device: str) -> str:
    place = torch.cuda.get_device_name() if device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {device} ({place})"


def show_cases(cases: list[tuple[str, str, str]]) -> None:
    """A row for each tool, level and way."""
    print(ROW.format(*HEADER))
    for case in cases:
        print(format_row(*case, run_case(case)), flush=True)


def run_case(case: tuple[str, str, str]) -> dict[str, Any]:
    """This program once more, for one case; it prints what `measure` gives."""
    command = [sys.executable, *sys.argv, "--case", ",".join(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip() or "failed").splitlines()[-1]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def format_row(tool: str, level: str, way: str, result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{tool:12} {level:5} {way:11} {result['error']}"
    times = f"{result['plain_ms']:.1f}", f"{result['captured_ms']:.1f}", f"{result['ratio']:.2f}x"
    sizes = f"{result['megabytes']:.2f}", result["files"], f"{result['peak_megabytes']:.1f}"
    row = ROW.format(tool, level, way, *times, *sizes, result["loss"])
    return "\n".join([row, *(f"  {line}" for line in result["remarks"])])


def measure(case: str, make_program: Callable[[], Program], options: argparse.Namespace) -> dict[str, Any]:
    """`options`: device, repeat, profile, deterministic, folder, disk."""
    tool, level, way = case.split(",")
    logging.disable(logging.INFO)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    program = make_program()
    twin = make_program()  # never captured: the losses must agree
    for _ in range(WARM_UP):
        plain_step(program)
        plain_step(twin)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        debugger = make_debugger(tool, write_config(Path(folder), level, way))
        return Turns(program, twin, debugger, Path(folder), options).run()


class Turns:
    """The first turn warms up; the others count."""

    def __init__(
        self, program: Program, twin: Program, debugger: Any, folder: Path, options: argparse.Namespace
    ) -> None:
        self._program = program
        self._twin = twin
        self._debugger = debugger
        self._folder = folder
        self._options = options
        self._plain: list[float] = []
        self._captured: list[float] = []
        self._disk: dict[str, list[DiskTurn]] = {"left to the system": [], "synced": []}
        self._size_bytes = self._file_count = 0
        self._coverage: dict[str, Any] = {}
        self._is_identical = True

    def run(self) -> dict[str, Any]:
        peak_before, graphs_before = peak_megabytes(), graph_count()
        for number in range(self._options.repeat + 1):
            self._take_turn(number)
        plain, captured = self._plain[1:], self._captured[1:]
        remarks = [format_turns(what, turns[1:]) for what, turns in self._disk.items() if turns]
        if self._coverage.get("failed") or self._coverage.get("unseen"):
            remarks.append(f"coverage: {json.dumps(self._coverage)}")
        if graph_count():
            remarks.append(f"compiled graphs: {graphs_before} after the warm-up, {graph_count()} at the end")
        return {
            "plain_ms": 1e3 * statistics.median(plain),
            "captured_ms": 1e3 * statistics.median(captured),
            "ratio": statistics.median(after / before for before, after in zip(plain, captured, strict=True)),
            "megabytes": self._size_bytes / 1e6,
            "files": self._file_count,
            "peak_megabytes": peak_megabytes() - peak_before,
            "loss": "bit-identical" if self._is_identical else "CHANGED",
            "remarks": remarks,
        }

    def _take_turn(self, number: int) -> None:
        options, device = self._options, self._options.device
        plain, loss = timed(lambda: plain_step(self._twin), device)
        if options.disk:
            os.sync()  # nobody's writing is left over
        captured, captured_loss = timed(lambda: captured_step(self._program, self._debugger), device, options.profile)
        self._plain.append(plain)
        self._captured.append(captured)
        self._is_identical = self._is_identical and bool(torch.equal(loss, captured_loss))
        synced = captured + (sync_seconds() if options.disk else 0.0)
        step = self._folder / f"step{number}"
        files = [path.stat() for path in step.glob("**/*") if path.is_file()]
        self._size_bytes = size_bytes = sum({file.st_ino: file.st_size for file in files}.values())
        self._file_count = len(files)
        for run in step.glob("*/run.json"):
            self._coverage = json.loads(run.read_text())["coverage"]
        shutil.rmtree(step)
        if options.disk:
            dd = write_zeros(self._folder, size_bytes), write_zeros(self._folder, size_bytes, "conv=fdatasync")
            for turns, seconds, dd_seconds in zip(self._disk.values(), (captured, synced), dd, strict=True):
                turns.append(DiskTurn(size_bytes, plain, seconds, dd_seconds))


def sync_seconds() -> float:
    began = time.perf_counter()
    os.sync()
    return time.perf_counter() - began


def plain_step(program: Program) -> torch.Tensor:
    loss = program.forward_backward()
    program.update()
    return loss


def captured_step(program: Program, debugger: Any) -> torch.Tensor:
    debugger.start(program.model)
    loss = program.forward_backward()
    debugger.stop()
    program.update()
    debugger.step()
    return loss


def timed(step: Callable[[], torch.Tensor], device: str, profile: str | None = None) -> tuple[float, torch.Tensor]:
    synchronize(device)
    profiler = cProfile.Profile() if profile else None
    began = time.perf_counter()
    loss = profiler.runcall(step) if profiler else step()
    synchronize(device)
    seconds = time.perf_counter() - began
    if profiler and profile:
        profiler.dump_stats(profile)
    return seconds, loss.detach()


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_megabytes() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def graph_count() -> int:
    """How many graphs torch.compile has made so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def make_debugger(tool: str, config: Path) -> Any:
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger as Theirs  # type: ignore[import-not-found]

        return Theirs(str(config))
    from tensorprobe.pytorch import PrecisionDebugger

    return PrecisionDebugger(config)
