"""Programs that users wrote who had not read the code of compare: right ones, and small mistakes in them.

    python benchmarks/outside/run.py                            all of them
    python benchmarks/outside/run.py port_llama --fault epsilon
    python benchmarks/outside/run.py --task statistics --json results.json --verbose
    python benchmarks/outside/run.py --work DIR                 record into this folder, and take what is there already

Each folder holds two scripts, `reference.py` and `candidate.py`, as they were written, and `faults.json`: a text of one
of them, what it becomes, and the lines that are a right answer, or near one. A mistake is *exact* if the verdict names
a right line first, *near* if it names one of the others, or the function of a right line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDES = ("reference", "candidate")
OUTCOMES = ("silent", "false alarm", "exact", "near", "wrong", "missed", "error")
WHOLE_SCRIPTS = ("main", "train", "run")
"""A line in a function of this name says nothing of where in it."""
PATIENCE_SECONDS = 300

Fault = dict[str, Any]


def main() -> None:
    options = make_parser().parse_args()
    names = options.names or sorted(path.parent.name for path in HERE.glob("*/faults.json"))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            faults: list[Fault] = json.loads((HERE / name / "faults.json").read_text())
            for fault in [None, *faults]:
                label = fault["name"] if fault is not None else "right"
                if options.fault in label:
                    outcome, said = run_case(name, fault, Path(options.work or folder), options)
                    results.append({"program": name, "fault": label, "outcome": outcome, "said": said})
                    print(f"{name}: {label}: {outcome}", flush=True)
                    if options.verbose and outcome not in ("silent", "exact"):
                        print("\n".join(f"    {line}" for line in list_verdict(said)), flush=True)
    print("\n".join(build_table(results)))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these programs")
    parser.add_argument(
        "--fault", default="", help="only faults whose name contains this; `right` is the pair as it is"
    )
    parser.add_argument("--task", choices=("tensor", "statistics"), default="tensor")
    parser.add_argument("--level", choices=("L1", "mix"), default="L1")
    parser.add_argument("--dtype", help="as the programs take it; their own if it is not given")
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--work", type=Path, help="record into this folder")
    parser.add_argument("--verbose", action="store_true", help="print the verdict where it is not silent or exact")
    return parser


def run_case(name: str, fault: Fault | None, work: Path, options: argparse.Namespace) -> tuple[str, str]:
    """What compare made of it, and what it said."""
    base = work / f"{name}-{options.task}-{options.level}-{options.dtype or 'own'}"
    dumps = [record(name, side, fault, find_folder(base, side, fault), base, options) for side in SIDES]
    command = [sys.executable, "-m", "tensorprobe", "compare", *map(str, dumps)]
    try:
        done = subprocess.run(command, env=make_environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return "error", f"nothing said within {PATIENCE_SECONDS} s"
    return judge(name, fault, done.returncode, done.stdout), done.stdout + done.stderr


def find_folder(base: Path, side: str, fault: Fault | None) -> Path:
    """Of what is recorded of this side: a side without the fault is that of the right pair."""
    is_own = fault is not None and (fault["side"] == side or "steps" in fault)
    return base / (re.sub(r"\W+", "_", fault["name"]) if fault is not None and is_own else "right")


def record(name: str, side: str, fault: Fault | None, folder: Path, base: Path, options: argparse.Namespace) -> Path:
    script, dump = folder / f"{side}.py", folder / side
    if dump.exists():
        return dump
    folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / name / f"{side}.py").read_text()
    if fault is not None and fault["side"] == side:
        if text.count(fault["old"]) != 1:
            raise ValueError(
                f"{name}, {fault['name']}: what is to be changed is there {text.count(fault['old'])} times"
            )
        text = text.replace(fault["old"], fault["new"])
    script.write_text(text)
    environment = {**make_environment(), "LEVEL": options.level, "TASK": options.task, "WEIGHTS": str(base)}
    environment |= {"DTYPE": options.dtype} if options.dtype else {}
    environment |= {"STEPS": str(fault["steps"])} if fault is not None and "steps" in fault else {}
    done = subprocess.run([sys.executable, str(script), str(dump)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}, {side}: {done.stderr[-2000:]}")
    return dump


def make_environment() -> dict[str, str]:
    paths = [str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def judge(name: str, fault: Fault | None, code: int, said: str) -> str:
    if code not in (0, 1):
        return "error"
    if fault is None:
        return "false alarm" if code else "silent"
    if not code:
        return "missed"
    verdict = "\n".join(list_verdict(said))
    named: dict[str, int] = {}
    for side, line in re.findall(r"(reference|candidate)\.py:(\d+)", verdict):
        named.setdefault(side, int(line))  # the first one of each side
    right, near = ({(side, line) for side, line in fault.get(word, ())} for word in ("right", "near"))
    if right & named.items() or any(re.search(text, verdict) for text in fault.get("right_text", ())):
        return "exact"
    functions = {find_function(name, *one) for one in right} - {None}
    is_near = near & named.items() or functions & {find_function(name, *one) for one in named.items()}
    return "near" if is_near or any(re.search(text, verdict) for text in fault.get("near_text", ())) else "wrong"


def list_verdict(said: str) -> list[str]:
    """The first lines, up to the first empty one."""
    return said.partition("\n\n")[0].splitlines()


def find_function(name: str, side: str, line: int) -> tuple[str, str] | None:
    """The innermost function around a line."""
    tree = ast.parse((HERE / name / f"{side}.py").read_text())
    found = [
        (node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    innermost = max(found, default=(0, ""))[1]
    return (side, innermost) if innermost and innermost not in WHOLE_SCRIPTS else None


def build_table(results: list[dict[str, str]]) -> list[str]:
    lines = ["| | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|"]
    for name in [*dict.fromkeys(one["program"] for one in results), "all"]:
        counts = Counter(one["outcome"] for one in results if name in ("all", one["program"]))
        lines.append(f"| {name} | " + " | ".join(str(counts[word] or "") for word in OUTCOMES) + " |")
    return lines


if __name__ == "__main__":
    main()
