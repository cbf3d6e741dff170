"""What the statistics of one tensor cost in several versions of tensorprobe, measured in turn.

    python benchmarks/reduction.py TREE [TREE ...]                  a TREE is a checkout, such as one of `git worktree`
    python benchmarks/reduction.py --device cuda TREE [TREE ...]

Each tree has a process of its own; a round measures every tree once. The table shows medians, and their ratio to the
first tree's. On the CPU it is the time of the one thread that reduces, on a CUDA device that of the kernel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import torch

SIZES = {"cpu": (64, 1024, 4096, 16384, 65536, 100_000, 1 << 17, 1 << 18, 1 << 20, 1 << 22)}
SIZES["cuda"] = (1 << 16, 1 << 20, 1 << 24, (1 << 24) + 5, 1 << 28)
DTYPES = ("float32", "bfloat16")


def time_on_host(tensor: torch.Tensor) -> float:
    from tensorprobe.capture.torch.statistics import reduce_on_host

    repeats = max(1, min(50, 200_000 // tensor.numel()))
    start = time.thread_time()
    for _ in range(repeats):
        reduce_on_host(tensor, tensor.numel())
    return (time.thread_time() - start) / repeats * 1e6


def time_on_device(tensor: torch.Tensor) -> float:
    """In a graph: without what Python takes."""
    from tensorprobe.capture.torch import device_kernel

    rows = torch.empty(1 << 13, device_kernel.COLUMNS, dtype=torch.float64, device="cuda")
    hashes = torch.empty(1 << 13, dtype=torch.int64, device="cuda")
    programs = device_kernel.program_count(tensor.numel(), device_kernel.processor_count(tensor.device))
    table = torch.tensor([[tensor.data_ptr(), tensor.numel(), 0, programs]]).pin_memory()
    launcher = device_kernel.Launcher(table, rows, hashes)

    def launch() -> None:
        launcher.launch((tensor.dtype, True, False), 0, 1, programs, torch.cuda.current_stream().cuda_stream)

    launch()
    repeats = max(1, min(200, (1 << 26) // tensor.numel()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            launch()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000.0 * start.elapsed_time(end) / repeats


def measure_what_is_asked(device: str) -> None:
    torch.set_num_threads(1)
    known: dict[str, torch.Tensor] = {}
    for line in sys.stdin:
        if line not in known:
            dtype, size = line.split()
            known = {line: torch.randn(int(size), device=device).to(getattr(torch, dtype))}
        print((time_on_host if device == "cpu" else time_on_device)(known[line]), flush=True)


def start_worker(tree: Path, device: str) -> tuple[IO[str], IO[str]]:
    command = [sys.executable, __file__, "--worker", "--device", device, str(tree)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    worker = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert worker.stdin is not None and worker.stdout is not None
    return worker.stdin, worker.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return measure_what_is_asked(options.device)
    workers = [start_worker(tree, options.device) for tree in options.trees]
    for dtype in DTYPES:
        for size in SIZES[options.device]:
            times: list[list[float]] = [[] for _ in workers]
            for _ in range(options.repeat):
                for taken, (questions, answers) in zip(times, workers, strict=True):
                    questions.write(f"{dtype} {size}\n")
                    taken.append(float(answers.readline()))
            medians = [statistics.median(taken) for taken in times]
            cells = [f"{median:10.1f} us {median / medians[0]:5.2f}x" for median in medians]
            print(f"{dtype:10}{size:>10}", *cells, flush=True)
    return None


if __name__ == "__main__":
    main()
