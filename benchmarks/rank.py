"""What comparing many ranks and steps costs; and the first pass of a comparison of very many, simulated.

    python benchmarks/rank.py                                 8×2, 16×4 … ranks × steps of 500 records
    python benchmarks/rank.py --size 64x10 --records 5000     the whole case
    python benchmarks/rank.py --first-pass 10000              one line for each step and rank, read first

The dumps are generated: statistics and hashes of a chain of calls, the same on both sides but for one rank, in whose
last step one result differs. Each size is compared in a process of its own; times are of its processor, and the peak of
memory is its own too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tensorprobe

SIZES = ("4x1", "8x2", "16x4")
HEADER = ("ranks x steps", "cells", "records", "CPU s", "ms a cell", "peak MB")
ROW = "{:>14} {:>6} {:>9} {:>8} {:>10} {:>8}"


def main() -> None:
    options = parse_options()
    if options.worker:
        compare_and_tell(Path(options.worker))
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        if options.first_pass:
            simulate_first_pass(Path(name), options.first_pass, options.steps)
            return
        print(ROW.format(*HEADER))
        for size in options.size or SIZES:
            ranks, steps = map(int, size.split("x"))
            folder = Path(name) / size
            for side in ("reference", "candidate"):
                write_run(folder / side, ranks, steps, options.records, is_wrong=side == "candidate")
            run_size(size, ranks * steps, options.records, folder)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", help="ranks x steps: 64x10")
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--first-pass", type=int, metavar="RANKS")
    parser.add_argument("--steps", type=int, default=10, help="of --first-pass")
    parser.add_argument("--scratch", help="a folder for the dumps")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_size(size: str, cells: int, records: int, folder: Path) -> None:
    done = subprocess.run([sys.executable, __file__, "--worker", str(folder)], capture_output=True, check=True)
    seconds, peak_mb = json.loads(done.stdout)
    print(ROW.format(size, cells, records, f"{seconds:.1f}", f"{1000 * seconds / cells:.0f}", f"{peak_mb:.0f}"))


def compare_and_tell(folder: Path) -> None:
    result = tensorprobe.compare(folder / "reference", folder / "candidate")
    assert result.verdict.call is not None, result.verdict.headline
    assert result.verdict.call.name == "Functional.linear.3.forward"
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))


def write_run(path: Path, ranks: int, steps: int, records: int, *, is_wrong: bool) -> None:
    for step in range(steps):
        for rank in range(ranks):
            is_wrong_here = is_wrong and (rank, step) == (ranks // 2, steps - 1)
            write_cell(path / f"step{step}" / f"rank{rank}", records, rank + 1000 * step, is_wrong_here)


def write_cell(folder: Path, records: int, seed: int, is_wrong: bool) -> None:
    folder.mkdir(parents=True)
    head = '{"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": null, "data": {\n'
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in iter_records(records, seed, is_wrong)
    )
    (folder / "dump.json").write_text(f"{head}{lines}\n}}}}\n")
    run = {"run_id": "20260101-000000-000000", "complete": True, "environment": {"WORLD_SIZE": "64"}}
    (folder / "run.json").write_text(json.dumps(run))


def iter_records(count: int, seed: int, is_wrong: bool) -> Iterator[tuple[str, dict[str, object]]]:
    """Each call takes the result of the one before it; from the fourth on the wrong run has others."""
    source, value = None, 0
    for number in range(count):
        name = f"Functional.linear.{number}.forward"
        given = make_leaf(seed, value, source)
        value = number + 1 + (10**6 if is_wrong and number >= 3 else 0)
        yield name, {"input_args": [given], "input_kwargs": {}, "output": [make_leaf(seed, value, None)]}
        source = name


def make_leaf(seed: int, value: int, source: str | None) -> dict[str, object]:
    digest = hashlib.blake2b(f"{seed} {value}".encode(), digest_size=8).digest()
    norm = 1 + int.from_bytes(digest[:4], "big") / 2**32
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [16, 1024], "requires_grad": True}
    numbers = {"Max": norm / 8, "Min": -norm / 8, "Mean": norm / 1000, "Norm": norm, "hash": digest.hex()}
    return {**leaf, **numbers, **({"source": source} if source else {})}


def simulate_first_pass(folder: Path, ranks: int, steps: int) -> None:
    """One line for each cell: how many records, a hash over all of their hashes, the sum of their norms."""
    sizes = {
        side: write_lines(folder / f"{side}.jsonl", ranks, steps, side == "candidate")
        for side in ("reference", "candidate")
    }
    began = time.process_time()
    cells = [read_lines(folder / f"{side}.jsonl") for side in ("reference", "candidate")]
    differing = [place for place, cell in cells[0].items() if cells[1].get(place) != cell]
    seconds = time.process_time() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{ranks} ranks x {steps} steps: {sum(sizes.values()) / 1e6:.1f} MB read in {seconds:.2f} CPU s, "
        f"peak {peak_mb:.0f} MB"
    )
    print(f"{len(differing)} of {len(cells[0])} cells differ: {differing[:3]}")


def write_lines(path: Path, ranks: int, steps: int, is_wrong: bool) -> int:
    with path.open("w") as file:
        for step in range(steps):
            for rank in range(ranks):
                is_wrong_here = is_wrong and rank == ranks // 2 and step >= steps - 2
                digest = hashlib.blake2b(f"{step} {rank} {is_wrong_here}".encode(), digest_size=16).hexdigest()
                cell = {"step": step, "rank": rank, "records": 5000, "hash": digest, "norm": 5000.0 + is_wrong_here}
                file.write(json.dumps(cell) + "\n")
    return path.stat().st_size


def read_lines(path: Path) -> dict[tuple[int, int], tuple[int, str, float]]:
    found = {}
    with path.open() as file:
        for line in file:
            cell = json.loads(line)
            found[cell["step"], cell["rank"]] = cell["records"], cell["hash"], cell["norm"]
    return found


if __name__ == "__main__":
    main()
