"""What comparing costs: pairs of files, two folders of them, two dumps beside msprobe's compare, two large tensors,
many records.

    python benchmarks/compare.py                              every case
    python benchmarks/compare.py --case pairs --repeat 9
    python benchmarks/compare.py --msprobe .venv-msprobe/bin/msprobe

Every way of a case runs in a process of its own, in turns, so that what else the machine does falls on all alike; times
are medians and include the start of the process. "CPU" is the time of all its processes together, "read" the plain cost
of reading the same bytes, in one process. The files are warm: they were read once before. TroubleShooter is not among
the ways: its 11.6 s for the case `pairs` were measured once, at another time, and are no more than a hint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAIRS = 200
SIDE = 1000
LARGE_BYTES = 1 << 30
RECORDS = 20_000
NOISE = 1e-5
HEADER = ("case", "way", "seconds", "least", "CPU s", "read s", "ratio", "peak MB")
ROW = "{:24} {:28} {:>8} {:>8} {:>8} {:>8} {:>7} {:>9}"

Way = tuple[str, list[str]]


@dataclass(frozen=True)
class Case:
    """Ways to do one thing, each a command."""

    name: str
    ways: list[Way]
    read: list[Path]
    """The files whose plain reading is the measure."""


def main() -> None:
    options = parse_options()
    if options.worker is not None:
        WORKERS[options.worker](Path(options.folder), options.processes)
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        print(f"numpy {np.__version__}, {os.cpu_count()} cores, {options.processes} processes, {options.repeat} times")
        print(ROW.format(*HEADER))
        for case_name in options.case or CASES:
            folder = Path(name) / case_name
            folder.mkdir()
            # In a process of its own: the memory of this one would count as that of the processes that it starts.
            subprocess.run(this_script(f"make_{case_name}", folder, 1), check=True)
            for case in CASES[case_name](folder, options):
                run_case(case, options.repeat)
            shutil.rmtree(folder)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--msprobe", default=shutil.which("msprobe"), help="the command, to run its compare as well")
    parser.add_argument("--scratch", help="where the files are made: 5 GB")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_case(case: Case, repeat: int) -> None:
    read_all(case.read)
    runs: dict[str, list[Run]] = {name: [] for name, _ in case.ways}
    reading = []
    for _ in range(repeat):
        began = time.perf_counter()
        read_all(case.read)
        reading.append(time.perf_counter() - began)
        for name, command in case.ways:
            runs[name].append(run_command(command))
    plain = statistics.median(reading)
    for name, found in runs.items():
        median = statistics.median(run.seconds for run in found)
        numbers = (
            median,
            min(run.seconds for run in found),
            statistics.median(run.cpu_seconds for run in found),
            plain,
        )
        peak = max(run.peak_bytes for run in found) / 1e6
        texts = [f"{number:.2f}" for number in numbers]
        print(ROW.format(case.name, name, *texts, f"{median / plain:.1f}", f"{peak:.0f}"), flush=True)


@dataclass(frozen=True)
class Run:
    """One run of a command, with the processes that it started."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Of its largest process."""


def run_command(command: list[str]) -> Run:
    """Exit code 1 means that the runs differ."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} failed: {complaint.decode()[-2000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def read_all(paths: list[Path]) -> None:
    buffer = bytearray(1 << 22)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def this_script(worker: str, folder: Path, processes: int) -> list[str]:
    return [sys.executable, __file__, "--worker", worker, "--folder", str(folder), "--processes", str(processes)]


# Pairs of .npy files, without a dump around them.


def make_pairs(folder: Path, _: int) -> None:
    for kind, noise in (("close", NOISE), ("equal", 0.0)):
        (folder / kind).mkdir()
        for number in range(PAIRS):
            for side, values in zip(("reference", "candidate"), make_values(number, noise), strict=True):
                np.save(folder / kind / f"{side}{number}.npy", values)


def pair_cases(folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    for kind in ("close", "equal"):
        inside = folder / kind
        ways = [(f"{count} processes", this_script("pairs", inside, count)) for count in (options.processes, 1)]
        yield Case(f"{PAIRS} pairs, {kind}", ways, sorted(inside.iterdir()))


def make_values(number: int, noise: float) -> tuple[Any, Any]:
    generator = np.random.default_rng(number)
    values = generator.standard_normal((SIDE, SIDE), np.float32)
    return values, values * (1 + noise * generator.standard_normal(values.shape, np.float32))


def measure_pairs(folder: Path, processes: int) -> None:
    count = sum(1 for _ in folder.glob("reference*.npy"))
    paths = [(folder / f"reference{number}.npy", folder / f"candidate{number}.npy") for number in range(count)]
    measure_files(paths, processes)


def measure_files(paths: list[tuple[Path, Path]], processes: int) -> None:
    from tensorprobe.compare.measure.executor import MeasureTask, run_tasks
    from tensorprobe.store.slot import iter_slots

    (slot,) = iter_slots({"type": "torch.Tensor", "dtype": "torch.float32"}, "output.0")
    tasks = [MeasureTask(slot, slot, *pair, 1e-4, 1e-4) for pair in paths]  # type: ignore[arg-type]
    for found in run_tasks(tasks, processes):
        assert found.problem is None, found.problem


# The same pairs as two folders, with progress bar and table: compare_npy_dir.


def make_folders(folder: Path, _: int) -> None:
    for side in ("reference", "candidate"):
        (folder / side).mkdir()
    for number in range(PAIRS):
        for side, values in zip(("reference", "candidate"), make_values(number, NOISE), strict=True):
            np.save(folder / side / f"{number}_x.npy", values)


def folder_cases(folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    call = (
        "import sys, tensorprobe; tensorprobe.migrator.compare_npy_dir(*sys.argv[1:3], num_processes=int(sys.argv[3]))"
    )
    sides = [str(folder / side) for side in ("reference", "candidate")]
    ways = [
        (f"{count} processes", [sys.executable, "-c", call, *sides, str(count)]) for count in (options.processes, 1)
    ]
    yield Case(f"2 folders of {PAIRS} files", ways, sorted(folder.rglob("*.npy")))


# Two tensors of 1 GB: the memory stays flat.


def make_large(folder: Path, _: int) -> None:
    shape = (LARGE_BYTES // 4 // SIDE // SIDE, SIDE, SIDE)
    for side, position in (("reference", 0), ("candidate", 1)):
        file = np.lib.format.open_memmap(folder / f"{side}0.npy", "w+", np.dtype(np.float32), shape)
        for number in range(shape[0]):
            file[number] = make_values(number, NOISE)[position]


def large_cases(folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    yield Case("1 pair of 1 GB each", [("1 process", this_script("pairs", folder, 1))], sorted(folder.iterdir()))


# Whole dumps, beside msprobe's compare.


def make_dump(folder: Path, _: int) -> None:
    import torch

    for side, position in (("reference", 0), ("candidate", 1)):
        rank = folder / side / "step0" / "rank"
        (rank / "dump_tensor_data").mkdir(parents=True)
        records = {}
        for number in range(PAIRS):
            tensor = torch.from_numpy(make_values(number, NOISE)[position])
            name = f"Torch.tanh.{number}.forward"
            torch.save(tensor, rank / "dump_tensor_data" / f"{name}.output.0.pt")
            leaf = {**make_leaf(tensor.numpy()), "data_name": f"{name}.output.0.pt"}
            records[name] = {"input_args": [], "input_kwargs": {}, "output": [leaf]}
        write_dump(rank, "tensor", records)


def dump_cases(folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    read = sorted(folder.rglob("*.pt"))
    yield Case(f"dump of {PAIRS} tensors", compare_ways(folder, options), read)


def make_records(folder: Path, _: int) -> None:
    for side in ("reference", "candidate"):
        rank = folder / side / "step0" / "rank"
        rank.mkdir(parents=True)
        records = {}
        source = None
        generator = np.random.default_rng(0)
        for number in range(RECORDS):
            op = ("linear", "gelu", "layer_norm", "dropout")[number % 4]
            name = f"Functional.{op}.{number // 4}.forward"
            leaf = make_leaf(generator.standard_normal(64))
            given = {**leaf, "source": source} if source else leaf
            records[name] = {
                "input_args": [given],
                "input_kwargs": {},
                "output": [leaf],
                "module_path": f"layers.{number // 40}.mlp",
            }
            source = name
        write_dump(rank, "statistics", records)


def record_cases(folder: Path, options: argparse.Namespace) -> Iterator[Case]:
    yield Case(f"{RECORDS:,} records", compare_ways(folder, options), sorted(folder.rglob("dump.json")))


def make_leaf(values: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(values.shape),
        "Max": float(values.max()),
        "Min": float(values.min()),
        "Mean": float(values.mean(dtype=np.float64)),
        "Norm": float(np.linalg.norm(values.astype(np.float64))),
        "requires_grad": False,
    }


def write_dump(rank: Path, task: str, records: dict[str, Any]) -> None:
    # msprobe wants the folder of the tensors by its full name.
    data_folder = str(rank / "dump_tensor_data") if task == "tensor" else None
    header = {"task": task, "level": "L1", "framework": "pytorch", "dump_data_dir": data_folder}
    (rank / "dump.json").write_text(json.dumps({**header, "data": records}))
    (rank / "construct.json").write_text("{}")
    stack = ["File model.py, line 1, in forward, \n x = f(x)"]
    (rank / "stack.json").write_text(json.dumps({"0": [list(records), stack]}))


def compare_ways(folder: Path, options: argparse.Namespace) -> list[Way]:
    sides = [folder / side / "step0" / "rank" for side in ("reference", "candidate")]
    output = folder / "output"
    ours = [sys.executable, "-m", "tensorprobe", "compare", *map(str, sides), "--processes", str(options.processes)]
    ways = [("tensorprobe, verdict", ours), ("tensorprobe, with files", [*ours, "-o", str(output)])]
    if options.msprobe:
        reference, candidate = (str(side / "dump.json") for side in sides)
        ways.append(("msprobe", [options.msprobe, "compare", "-tp", candidate, "-gp", reference, "-o", str(output)]))
    return ways


CASES: dict[str, Callable[[Path, argparse.Namespace], Iterator[Case]]] = {
    "pairs": pair_cases,
    "folders": folder_cases,
    "large": large_cases,
    "dump": dump_cases,
    "records": record_cases,
}
WORKERS: dict[str, Callable[[Path, int], None]] = {
    "pairs": measure_pairs,
    "make_pairs": make_pairs,
    "make_folders": make_folders,
    "make_large": make_large,
    "make_dump": make_dump,
    "make_records": make_records,
}

if __name__ == "__main__":
    main()
