"""Tables for the docs, of what `faults.py --json` wrote: python benchmarks/fault_summary.py FILE ... > table.md

Held-out are the cases of models or seeds that tuning never saw.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fault.case import FIRST_HELD_OUT_SEED, LEVELS, TASKS
from fault.kind import KINDS

Score = dict[str, Any]


def main() -> None:
    scores: list[Score] = [score for path in sys.argv[1:] for score in json.loads(Path(path).read_text())]
    for score in scores:
        score |= score.pop("case")
        score |= score.pop("setting")
        score["split"] = "held out" if score["seed"] >= FIRST_HELD_OUT_SEED else "tuning"
    faults = [score for score in scores if score["kind"] in KINDS]
    print_settings(faults)
    print_kinds([score for score in faults if not score["noise"] and score["tool"] == "tensorprobe"])
    print_unfaulted([score for score in scores if score["kind"] not in KINDS])
    print_failures(faults)


def print_settings(scores: list[Score]) -> None:
    print_row("", *(f"{task}, {level}" for task in TASKS for level in LEVELS))
    print_rule(1 + len(TASKS) * len(LEVELS))
    rows = sorted({(score["tool"], score["dtype"], bool(score["noise"]), score["split"]) for score in scores})
    for tool, dtype, is_noisy, split in sorted(rows, key=lambda row: (row[0] != "tensorprobe", row[1:])):
        own = [
            score
            for score in scores
            if (score["tool"], score["dtype"], bool(score["noise"]), score["split"]) == (tool, dtype, is_noisy, split)
        ]
        words = [tool, dtype, *(["on top of rounding noise"] if is_noisy else []), split]
        cells = [
            share(score for score in own if (score["task"], score["level"]) == (task, level))
            for task in TASKS
            for level in LEVELS
        ]
        print_row(", ".join(words), *cells)
    print()


def print_kinds(scores: list[Score]) -> None:
    scores = [score for score in scores if score["dtype"] == "float32"]
    print_row("kind of fault", "cases", *(f"{task}, {level}" for task in TASKS for level in LEVELS))
    print_rule(2 + len(TASKS) * len(LEVELS))
    for kind, described in KINDS.items():
        own = [score for score in scores if score["kind"] == kind]
        cells = [
            share((score for score in own if (score["task"], score["level"]) == (task, level)), has_count=False)
            for task in TASKS
            for level in LEVELS
        ]
        if own:
            print_row(described.words, len(own), *cells)
    print()


def print_unfaulted(scores: list[Score]) -> None:
    print_row("pairs without a fault", "pairs", "silent", "alarms")
    print_rule(4)
    groups: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        steps = f", {score['steps']} steps" if score["steps"] > 1 else ""
        groups[f"{score['dtype']}, {score['noise'] or 'the same run twice'}{steps}"].append(score)
    for name, own in groups.items():
        outcomes = [score["outcome"] for score in own]
        print_row(name, len(own), outcomes.count("silent"), len(own) - outcomes.count("silent"))
    print()


def print_failures(scores: list[Score]) -> None:
    for score in scores:
        if score["tool"] == "tensorprobe" and score["dtype"] == "float32" and score["outcome"] != "exact":
            names = [score[key] for key in ("outcome", "split", "model", "kind", "seed", "level", "task", "noise")]
            said = score["saying"]
            print(f"<!-- {names} said {said['verdict']} {said['reference']} off {score['distance']} -->")


def share(scores: Iterable[Score], *, has_count: bool = True) -> str:
    outcomes = [score["outcome"] for score in scores]
    if not outcomes:
        return ""
    exact = outcomes.count("exact")
    percent = f"{100 * exact / len(outcomes):.1f}".removesuffix(".0") + " %"
    return f"{percent} of {len(outcomes)}" if has_count else percent


def print_row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|")


def print_rule(count: int) -> None:
    print("|" + "---|" * count)


if __name__ == "__main__":
    main()
