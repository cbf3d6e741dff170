"""One rank: records every case for its number of ranks. Run by torchrun: `worker.py FOLDER [CASE…]`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

import tensorprobe
from tests.compare.layout.case import CASES, SMALL, Case


def record(case: Case, folder: Path, *, is_small: bool = False) -> None:
    """One step, with all its tensors, or with its leaves only."""
    model, step = case
    level, task = ("L1", "replay") if is_small else ("mix", "tensor")
    with tensorprobe.capture(model, folder, level=level, task=task) as recording:
        step()
        recording.step()


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    cases = CASES[dist.get_world_size()]
    for name in sys.argv[2:] or cases:
        record(cases[name](), folder / name, is_small=name in SMALL)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
