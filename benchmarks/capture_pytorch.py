"""capture.py for PyTorch: plain and captured steps in turns in one process, each case in a process of its own."""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpt import SIZES, Program, make_program

from capture import LEVELS, WAYS, write_config

WARM_UP = 3
HEADER = ("tool", "level", "way", "plain ms", "ms", "ratio", "MB/step", "files", "+peak MB", "loss")
ROW = "{:12} {:5} {:11} {:>9} {:>9} {:>7} {:>9} {:>6} {:>9}  {}"


def run(options: argparse.Namespace) -> None:
    if options.case is not None:
        print(json.dumps(measure(*options.case.split(","), options)))
        return
    tools = ["tensorprobe"] + (["msprobe"] if importlib.util.find_spec("msprobe") else [])
    place = torch.cuda.get_device_name() if options.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {options.device} ({place}), size {options.size}, {options.repeat} pairs")
    print(ROW.format(*HEADER))
    for way in options.way or WAYS:
        for level in options.level or LEVELS:
            for tool in tools:
                if not (tool == "msprobe" and way == "hash"):
                    print(format_row(tool, level, way, run_case(tool, level, way, options)), flush=True)


def run_case(tool: str, level: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        str(Path(__file__).with_name("capture.py")),
        "--case",
        f"{tool},{level},{way}",
        "--repeat",
        str(options.repeat),
    ]
    command += ["--device", options.device, "--size", options.size]
    command += ["--profile", options.profile] if options.profile else []
    command += ["--deterministic"] if options.deterministic else []
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
    return ROW.format(tool, level, way, *times, *sizes, result["loss"])


def measure(tool: str, level: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plain and captured steps in turns."""
    logging.disable(logging.INFO)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    program = make_program(SIZES[options.size], options.device)
    twin = make_program(SIZES[options.size], options.device)  # never captured: the losses must agree
    for _ in range(WARM_UP):
        plain_step(program)
        plain_step(twin)
    peak_before = peak_megabytes()
    plain, captured = [], []
    is_identical = True
    with tempfile.TemporaryDirectory() as folder:
        debugger = make_debugger(tool, write_config(Path(folder), level, way))
        for _ in range(options.repeat + 1):
            seconds, loss = timed(lambda: plain_step(twin), options.device)
            plain.append(seconds)
            seconds, captured_loss = timed(lambda: captured_step(program, debugger), options.device, options.profile)
            captured.append(seconds)
            is_identical = is_identical and bool(torch.equal(loss, captured_loss))
        files = [path.stat() for path in Path(folder).glob("step1/**/*") if path.is_file()]
    ratios = [after / before for before, after in zip(plain[1:], captured[1:], strict=True)]
    return {
        "plain_ms": 1e3 * statistics.median(plain[1:]),
        "captured_ms": 1e3 * statistics.median(captured[1:]),
        "ratio": statistics.median(ratios),
        "megabytes": sum({file.st_ino: file.st_size for file in files}.values()) / 1e6,
        "files": len(files),
        "peak_megabytes": peak_megabytes() - peak_before,
        "loss": "bit-identical" if is_identical else "CHANGED",
    }


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


def make_debugger(tool: str, config: Path) -> Any:
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger as Theirs  # type: ignore[import-not-found]

        return Theirs(str(config))
    from tensorprobe.pytorch import PrecisionDebugger

    return PrecisionDebugger(config)
