"""Runs in the environment that has msprobe: compares the pairs that come in, one a line, without starting anew.

In: {"reference": dump.json, "candidate": dump.json, "output": folder}. Out: the first row that is not `pass`, or null.
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
            answer = {"row": find_row(Path(wanted["output"]))}
        except BaseException as error:  # its own errors leave by sys.exit, too
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def find_row(folder: Path) -> list[str] | None:
    (path,) = folder.glob("compare_result_*.csv")
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["Result"].lower() != "pass":
                return [row["Bench Name"], row["NPU Name"], row["Result"]]
    return None


if __name__ == "__main__":
    main()
