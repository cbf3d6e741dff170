"""What task `replay` costs and what a replay takes, for the GPT of the benchmarks.

    python benchmarks/replay.py                          GPT 6x256 in float32 on the CPU
    python benchmarks/replay.py --size gpu --device cuda GPT 8x2048 in bfloat16

One process, steps in turns, medians. Reading the recorded tensors is timed with the replay, and apart.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tensorprobe
from tensorprobe.replay import MemoryLimit, limit_memory
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Program, read_program
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.store.reader import open_dump

sys.path.insert(0, str(Path(__file__).parent))
from dataclasses import replace

import gpt

TASKS = ("statistics", "replay", "tensor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=gpt.SIZES, default="cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    size = gpt.SIZES[options.size]
    program = gpt.make_program(size, options.device)
    plain = make_timer(options.device)
    with tempfile.TemporaryDirectory() as folder:
        times: dict[str, list[float]] = {task: [] for task in ("plain", *TASKS)}
        for number in range(options.repeat + 1):
            for task in times:
                step = record_step(program, Path(folder) / task, options.level, task)
                taken = plain(step)
                if number:
                    times[task].append(taken)
        middle = {task: statistics.median(taken) for task, taken in times.items()}
        for task in times:
            megabytes = count_bytes(Path(folder) / task) / 1e6
            print(f"{task:12} {middle[task]:8.3f} s  {middle[task] / middle['plain']:6.2f}x  {megabytes:10.1f} MB")
        measure_replay(Path(folder) / "tensor", options, plain, size)


def measure_replay(dump: Path, options: argparse.Namespace, timer: Callable[..., float], size: gpt.Size) -> None:
    device = torch.device(options.device)
    recorded = read_program(next(open_dump(dump).ranks()))
    limit_memory([recorded], device, MemoryLimit())
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    wide = gpt.make_program(replace(size, dtype=torch.float32), options.device)
    rows: dict[str, list[float]] = {
        "plain float32 step": [],
        "reading": [],
        "replay float64": [],
        "replay recorded": [],
    }
    for number in range(options.repeat + 1):
        found = {
            "plain float32 step": timer(wide.forward_backward),
            "reading": timer(lambda: read_all(recorded, device)),
            "replay float64": timer(lambda: Replay(recorded, Precision("float64"), device).run()),
            "replay recorded": timer(lambda: Replay(recorded, Precision("recorded"), device).run()),
        }
        for name, taken in found.items():
            rows[name] += [taken] if number else []
    step = statistics.median(rows["plain float32 step"])
    for name, taken in rows.items():
        print(f"{name:20} {statistics.median(taken):8.3f} s  {statistics.median(taken) / step:6.2f}x")
    if options.device == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def record_step(program: gpt.Program, folder: Path, level: str, task: str) -> Callable[[], object]:
    if task == "plain":
        return program.forward_backward

    def step() -> None:
        with tensorprobe.capture(program.model, folder, level=level, task=task):
            program.forward_backward()

    return step


def read_all(program: Program, device: torch.device) -> None:
    """The leaves: what a replay reads."""
    recorded, seen = RecordedTensors(program.rank, device), set()
    for call in program.calls():
        for leaf in call.inputs:
            file_id = recorded.file_id(leaf)
            if leaf.source is None and file_id is not None and file_id not in seen:
                seen.add(file_id)
                recorded.load(leaf)


def make_timer(device: str) -> Callable[..., float]:
    def timed(action: Callable[[], object]) -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        began = time.perf_counter()
        action()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return timed


def count_bytes(folder: Path) -> int:
    files = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return sum(files.values())


if __name__ == "__main__":
    main()
