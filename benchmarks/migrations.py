"""Plants faults in the MindSpore networks of examples/migration and asks compare where they are.

python benchmarks/migrations.py [--network NAME] [--json FILE] [--verbose]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

from migration.fault import FAULTS, Fault
from migration.run import record_mindspore, record_pytorch, set_up, strip_tensors
from migration.score import SCORES, score

from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.option import CompareOptions

LEVELS, TASKS = ("L0", "L1", "mix"), ("tensor", "statistics")


@dataclass(frozen=True)
class Result:
    network: str
    kind: str
    level: str
    task: str
    score: str
    headline: str


def run_network(name: str, faults: list[Fault], folder: Path) -> Iterator[Result]:
    for level in LEVELS:
        good = folder / f"{name}_{level}"
        weights = record_pytorch(name, level, good)
        references = {"tensor": good, "statistics": strip_tensors(good, folder / f"{name}_{level}_statistics")}
        for number, fault in enumerate(faults):
            bad = folder / f"{name}_{level}_{number}"
            record_mindspore(name, level, bad, weights, fault)
            candidates = {"tensor": bad, "statistics": strip_tensors(bad, folder / f"{bad.name}_statistics")}
            for task in TASKS:
                comparison = compare_runs(references[task], candidates[task], CompareOptions(processes=1))
                yield Result(
                    name, fault.kind, level, task, score(comparison, fault, level), comparison.verdict.headline
                )


def build_table(results: list[Result]) -> list[str]:
    """A row for each kind of fault and network, a column for each task and level."""
    columns = [(task, level) for task in TASKS for level in LEVELS]
    lines = ["| fault | network | " + " | ".join(f"{task}, {level}" for task, level in columns) + " |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    rows: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for result in results:
        row = rows.setdefault((result.kind, result.network), {})
        row.setdefault((result.task, result.level), []).append(result.score)
    for (kind, network), row in sorted(rows.items()):
        cells = [", ".join(row.get(column, [])) for column in columns]
        lines.append(f"| {kind} | {network} | " + " | ".join(cells) + " |")
    totals = {column: Counter(one.score for one in results if (one.task, one.level) == column) for column in columns}
    for word in SCORES:
        cells = [f"{totals[column][word]} of {totals[column].total()}" for column in columns]
        lines.append(f"| **{word}** | | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", help="only this one")
    parser.add_argument("--kind", help="only faults whose kind contains this")
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--verbose", action="store_true", help="print the verdict of each one that is not exact")
    arguments = parser.parse_args()
    set_up()
    results: list[Result] = []
    for name in dict.fromkeys(fault.network for fault in FAULTS):
        faults = [fault for fault in FAULTS if fault.network == name and (arguments.kind or "") in fault.kind]
        if arguments.network not in (None, name) or not faults:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for result in run_network(name, faults, Path(folder)):
                results.append(result)
                if arguments.verbose and result.score != "exact":
                    print(f"{result.score}: {result.network}, {result.kind}, {result.level}, {result.task}")
                    print(f"    {result.headline}", flush=True)
    print("\n".join(build_table(results)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
