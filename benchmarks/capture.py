"""What capture costs: a training step with it against the same step without it, in turns, in one process.

    python benchmarks/capture.py              every level and task, and msprobe beside them where it is installed
    python benchmarks/capture.py --level L1 --way statistics --repeat 15
    python benchmarks/capture.py --device cuda --size gpu

The window holds the forward and the backward, as the manual has it; the optimizer comes after `stop`. The time of a
captured step includes start, stop, optimizer and step: everything is on disk when it ends. Ratios are medians over
pairs of neighbouring steps. Each case runs in a process of its own.
"""

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

LEVELS = ("L0", "L1", "mix")
WAYS = ("statistics", "tensor", "md5", "hash")
WARM_UP = 3
HEADER = ("tool", "level", "way", "plain ms", "ms", "ratio", "MB/step", "files", "+peak MB", "loss")
ROW = "{:12} {:5} {:11} {:>9} {:>9} {:>7} {:>9} {:>6} {:>9}  {}"


def main() -> None:
    options = parse_options()
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


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="cpu", choices=SIZES)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument(
        "--deterministic", action="store_true", help="so that losses on a GPU can be compared bit for bit"
    )
    parser.add_argument("--profile", help="write a cProfile of a captured step to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_case(tool: str, level: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", f"{tool},{level},{way}", "--repeat", str(options.repeat)]
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


def write_config(folder: Path, level: str, way: str) -> Path:
    """The same config.json for both tools."""
    task = "tensor" if way == "tensor" else "statistics"
    section = {"scope": [], "list": []} | ({} if task == "tensor" else {"summary_mode": way})
    config = {"task": task, "dump_path": str(folder), "rank": [], "step": [], "level": level, task: section}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


if __name__ == "__main__":
    main()
