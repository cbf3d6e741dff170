"""What one record of a small tensor costs: a training step of small layers, plain and recorded in turn, medians.

    python benchmarks/record.py [--layers 40] [--rounds 15] [--device cuda]

Processor time of the process is measured beside the time on the clock: it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

CASES = [(level, task) for task in ("statistics", "tensor") for level in ("L0", "L1", "mix")]


def make_model(layers: int) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)) for _ in range(layers)]
    return nn.Sequential(*blocks)


def run_step(model: nn.Module, x: torch.Tensor) -> None:
    model(x).square().mean().backward()


def measure(action: object, *arguments: object) -> tuple[float, float]:
    """Milliseconds on the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    action(*arguments)  # type: ignore[operator]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - processor)


def measure_case(level: str, task: str, given: argparse.Namespace) -> tuple[int, list[float]]:
    """How many records a step has, and what one of them costs: on the clock, and of the processor."""
    model, x = make_model(given.layers).to(given.device), torch.randn(8, 32, device=given.device)
    with tempfile.TemporaryDirectory() as folder:
        debugger = PrecisionDebugger(dump_path=folder, level=level, task=task)

        def record() -> None:
            debugger.start(model)
            run_step(model, x)
            debugger.stop()
            debugger.step()

        times: dict[str, list[tuple[float, float]]] = {"plain": [], "recorded": []}
        for number in range(given.rounds + 2):
            for name, found in (("plain", measure(run_step, model, x)), ("recorded", measure(record))):
                if number >= 2:  # the first ones compile and allocate
                    times[name].append(found)
        run = json.loads((Path(folder) / "step0" / "rank" / "run.json").read_text())
        PrecisionDebugger.reset()
    count = run["coverage"]["recorded"]
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in times.items()
    }
    return count, [
        (with_it - plain) / count for with_it, plain in zip(medians["recorded"], medians["plain"], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("tensorprobe").setLevel(logging.WARNING)
    print(f"{'level':6} {'task':10} {'records':>8} {'ms a record':>12} {'of processor':>13}")
    for level, task in CASES:
        count, (clock, processor) = measure_case(level, task, given)
        print(f"{level:6} {task:10} {count:8,} {clock:12.3f} {processor:13.3f}", flush=True)


if __name__ == "__main__":
    main()
