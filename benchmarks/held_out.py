"""Does compare stay silent on right pairs, and name the call that is wrong, on programs that it was not tuned on?

    python benchmarks/held_out.py                          every pair and model in float32
    python benchmarks/held_out.py --pair graph --verbose   one of them, and what was said where it is not exact
    python benchmarks/held_out.py --dtype bfloat16         models and refactors in bfloat16 (other pairs are float32)
    python benchmarks/held_out.py --dtype autocast         refactors in float32 under autocast to bfloat16
    python benchmarks/held_out.py --check                  that the corpus is right, by plain numbers: no comparison
    python benchmarks/held_out.py --list

The pairs are networks in PyTorch and their ports to MindSpore (held_out/network), the refactors networks in PyTorch
that are written twice (held_out/refactor), the models come from transformers and diffusers (held_out/third_party).
What the outcomes mean: held_out/answer.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

from held_out.answer import OUTCOMES
from held_out.comparison import Result, compare_case
from held_out.record import PAIRS, REFACTORS, Recorder, Setting, list_cases
from held_out.third_party import MODELS, find_installed

DTYPES = ("float32", "bfloat16", "float16", "autocast")


def main() -> None:
    options = make_parser().parse_args()
    known = (*PAIRS, *REFACTORS, *MODELS)
    subjects = options.pair or [*PAIRS, *REFACTORS, *find_installed()]
    if unknown := sorted(set(subjects) - set(known)):
        sys.exit(f"--pair {unknown[0]}: there is none of this name. There are: {', '.join(known)}")
    subjects = [subject for subject in subjects if options.dtype in list_dtypes(subject)]
    if options.list:
        print("\n".join(f"{subject}: {case.name}" for subject in subjects for case in list_cases(subject)))
        return
    if set(subjects) & set(PAIRS):
        from held_out.pair import set_up

        set_up()
    if options.check:
        from held_out.check import find_objections

        objections = [one for subject in subjects for one in find_objections(subject)]
        sys.exit("\n".join(objections) if objections else print(f"{len(subjects)} pairs and models are right"))
    results = list(run_all(subjects, options))
    print("\n".join(build_table(results)))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


def list_dtypes(subject: str) -> tuple[str, ...]:
    if subject in PAIRS:
        return ("float32",)
    return DTYPES if subject in REFACTORS else ("float32", "bfloat16")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", help="only this pair or model; may be given several times")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--level", choices=("L1", "mix"), default="L1")
    parser.add_argument("--task", choices=("tensor", "replay", "statistics"), default="tensor")
    parser.add_argument("--by", choices=("auto", "truth", "growth"), default="auto")
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--verbose", action="store_true", help="print the verdict where it is not silent or exact")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--check", action="store_true", help="only check that the corpus itself is right")
    return parser


def run_all(subjects: list[str], options: argparse.Namespace) -> Iterator[Result]:
    setting = Setting(options.level, options.task, options.dtype)
    for subject in subjects:
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder), setting)
            for case in list_cases(subject):
                if options.case not in case.name:
                    continue
                result = compare_case(case, recorder.record(case), setting, options.by)
                if options.verbose and result.outcome not in ("silent", "exact"):
                    print(f"{result.outcome}: {subject}, {case.name}\n    {result.headline}", flush=True)
                yield result


def build_table(results: list[Result]) -> list[str]:
    """A row for each pair and model, and for all of them; right ones and faults apart."""
    lines = ["| | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|"]
    subjects = list(dict.fromkeys(result.subject for result in results))
    groups: list[tuple[str, list[Result]]] = [
        (subject, [one for one in results if one.subject == subject]) for subject in subjects
    ]
    for kind, names in (("pairs", PAIRS), ("refactors", REFACTORS), ("models", tuple(MODELS))):
        groups.append((f"all {kind}: right", [one for one in results if one.subject in names and one.is_right]))
        groups.append((f"all {kind}: faults", [one for one in results if one.subject in names and not one.is_right]))
    for name, group in groups:
        counts = Counter(one.outcome for one in group)
        if group:
            lines.append(f"| {name} | " + " | ".join(str(counts[word] or "") for word in OUTCOMES) + " |")
    return lines


if __name__ == "__main__":
    main()
