"""Runs in the environment that has msprobe: compares the pairs that come in, one a line, without starting anew.

In: {"reference": dump.json, "candidate": dump.json, "output": folder}. Out: the first row that is not `pass`, and the
first in which a number differs at all; null where there is none.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from pathlib import Path


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what msprobe prints is no answer
    from msprobe.pytorch.compare.pt_compare import pt_compare  # type: ignore[import-not-found]

    for line in sys.stdin:
        wanted = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                pt_compare({"npu_path": wanted["candidate"], "bench_path": wanted["reference"]}, wanted["output"])
            answer = {"rows": find_rows(Path(wanted["output"]))}
        except BaseException as error:  # its own errors leave by sys.exit, too
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def find_rows(folder: Path) -> dict[str, list[str] | None]:
    (path,) = folder.glob("compare_result_*.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        "result": next((row for row in rows if row["Result"].lower() != "pass"), None),
        "difference": next((row for row in rows if has_difference(row)), None),
    }
    return {key: row and [row["Bench Name"], row["NPU Name"], row["Result"]] for key, row in found.items()}


def has_difference(row: dict[str, str]) -> bool:
    """By its own numbers: the largest error of a tensor, or a value or statistic that is another on each side."""
    error = row.get("MaxAbsErr", "0.0")
    if is_number(error) and float(error) != 0:
        return True
    return any(row[f"NPU {name}"] != row[f"Bench {name}"] for name in ("max", "min", "mean", "l2norm"))


def is_number(text: str) -> bool:
    """Where it has none it writes `unsupported`, `N/A` or nothing."""
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
