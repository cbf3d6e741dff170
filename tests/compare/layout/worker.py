"""One rank: records every case for its number of ranks. Run by torchrun: `worker.py FOLDER [CASE…]`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

import tensorprobe
from tests.compare.layout.case import CALLS_ONLY, RIGHT, SMALL, STATISTICS, WRONG, Case
from tests.compare.layout.eight import EIGHT
from tests.compare.layout.four import FOUR

CASES = {2: {**RIGHT, **WRONG}, 4: FOUR, 8: EIGHT}


def record(case: Case, folder: Path, *, level: str = "mix", task: str = "tensor") -> None:
    """One step, with all its tensors, with its leaves only, or with nothing but statistics."""
    model, step = case
    with tensorprobe.capture(model, folder, level=level, task=task) as recording:
        step()
        recording.step()


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    cases = CASES[dist.get_world_size()]
    for name in sys.argv[2:] or cases:
        task = "statistics" if name.endswith(STATISTICS) else "replay" if name in SMALL else "tensor"
        level = "L1" if name in SMALL or name.startswith(CALLS_ONLY) else "mix"
        record(cases[name.removesuffix(STATISTICS)](), folder / name, level=level, task=task)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
