"""The real msprobe, in the environment that `scripts/test msprobe` makes: its compare command, and its result."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.length import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-msprobe" / "bin"
PROGRAMS = Path(__file__).parent
ABSENT = "N/A"
"""What stands in the place of a name that has no partner."""


@dataclass(frozen=True)
class Row:
    """One line of a result: a slot of the target and the slot of the golden dump that it was paired with."""

    fields: dict[str, str]

    @property
    def target(self) -> str:
        return self.fields["NPU Name"]

    @property
    def golden(self) -> str:
        return self.fields["Bench Name"]

    @property
    def is_pair(self) -> bool:
        return ABSENT not in (self.target, self.golden)

    @property
    def is_tensor(self) -> bool:
        return self.fields["NPU Dtype"].startswith("torch.")

    @property
    def differs(self) -> bool:
        """By whatever the mode of the comparison measures."""
        if "NPU MD5" in self.fields:
            return self.fields["NPU MD5"] != self.fields["BENCH MD5"]
        columns = ("MaxAbsErr",) if "MaxAbsErr" in self.fields else ("Max diff", "Min diff", "Mean diff", "L2norm diff")
        return any(float(self.fields[column]) != 0 for column in columns)


def start(command: list[str | Path], folder: Path) -> subprocess.Popen[str]:
    """A process with our sources to import; what it says is kept in case it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for it; it must have gone well."""
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said[-3000:]


def start_program(tool: str, folder: Path, cases: list[str]) -> subprocess.Popen[str]:
    """program.py, recorded by tensorprobe or msprobe."""
    python = ENVIRONMENT / "python" if tool == "msprobe" else Path(sys.executable)
    folder.mkdir()
    return start([python, PROGRAMS / "program.py", tool, folder, *cases], folder)


def start_compare(target: Path, golden: Path, result: Path) -> subprocess.Popen[str]:
    """`msprobe compare` of two dumps of one process."""
    (target_file,), (golden_file,) = (list(dump.glob("step0/*/dump.json")) for dump in (target, golden))
    result.mkdir()
    return start([ENVIRONMENT / "msprobe", "compare", "-tp", target_file, "-gp", golden_file, "-o", result], result)


def read_result(result: Path) -> list[Row]:
    """The table that a comparison wrote."""
    (path,) = result.glob("compare_result_*.csv")
    with path.open(newline="") as file:
        return [Row(fields) for fields in csv.DictReader(file)]


def tensor_pairs(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """The names of the tensors that were paired."""
    return ((row.target, row.golden) for row in rows if row.is_pair and row.is_tensor)
