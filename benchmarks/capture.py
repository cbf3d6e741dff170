"""What capture costs: a training step with it against the same step without it, in turns.

    python benchmarks/capture.py              every level and task, and msprobe beside them where it is installed
    python benchmarks/capture.py --level L1 --way statistics --repeat 15
    python benchmarks/capture.py --device cuda --size gpu
    python benchmarks/capture.py --level L1 --way tensor --disk --folder /data
    python benchmarks/capture.py --framework mindspore

The window holds the forward and the backward, as the manual has it; the optimizer comes after `stop`. The time of a
captured step includes start, stop, optimizer and step: everything is on disk when it ends. Ratios are medians over
pairs of neighbouring steps. With --disk each captured step is held against dd, which writes as many bytes into the
same folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

LEVELS = ("L0", "L1", "mix")
WAYS = ("statistics", "tensor", "md5", "hash")
FRAMEWORKS = ("pytorch", "mindspore")


def main() -> None:
    options = parse_options()
    if options.framework == "mindspore":  # each imports its framework, and only that
        from capture_mindspore import run
    else:
        from capture_pytorch import run
    run(options)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="pytorch", choices=FRAMEWORKS)
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--profile", help="write a cProfile of a captured step to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    torch = parser.add_argument_group("PyTorch only")
    torch.add_argument("--device", default="cpu")
    torch.add_argument("--size", default="cpu", choices=("cpu", "gpu", "large"))
    torch.add_argument(
        "--deterministic", action="store_true", help="so that losses on a GPU can be compared bit for bit"
    )
    torch.add_argument("--disk", action="store_true", help="hold what a step writes against dd")
    torch.add_argument("--folder", help="where the dumps go; a temporary folder if it is not given")
    options = parser.parse_args()
    if options.framework == "mindspore" and (options.device, options.size, options.disk) != ("cpu", "cpu", False):
        parser.error("--framework mindspore runs on the CPU, in its size, and without --disk")
    return options


def write_config(folder: Path, level: str, way: str) -> Path:
    """The same config.json for every tool."""
    task = "tensor" if way == "tensor" else "statistics"
    section = {"scope": [], "list": []} | ({} if task == "tensor" else {"summary_mode": way})
    config = {"task": task, "dump_path": str(folder), "rank": [], "step": [], "level": level, task: section}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


if __name__ == "__main__":
    main()
