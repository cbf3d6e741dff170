"""Does compare name the call that is wrong? Faults planted in models at places drawn from seeds, and the truth of each.

    python benchmarks/faults.py                                   all of the tuning split, level L1, task tensor
    python benchmarks/faults.py --level L0 --task statistics --seeds 5
    python benchmarks/faults.py --model gpt --kind epsilon --seed 3          one case alone
    python benchmarks/faults.py --noise split                     each fault on top of rounding noise
    python benchmarks/faults.py --unfaulted                       pairs without a fault: is it silent?
    python benchmarks/faults.py --keep DIR;  python benchmarks/faults.py --reuse DIR      record once, compare often
    python benchmarks/faults.py --check                           is the corpus itself right? bit for bit, no compare
    python benchmarks/faults.py --split held-out                  models and seeds that were not used while tuning
    python benchmarks/faults.py --peer msprobe                    msprobe's compare on the same dumps
    python benchmarks/faults.py --framework mindspore             the models that are written in MindSpore

What counts as right is in fault/truth.py and fault/score.py.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault.case import DTYPES, LEVELS, SPLITS, TASKS, UNFAULTED, Case, Setting, models_of, seeds_of, survey_model
from fault.check import find_objection, find_rewrite_objection, find_unfaulted_objection
from fault.dump import read_dump
from fault.framework import FRAMEWORKS, framework_of
from fault.kind import KINDS, REWRITES
from fault.peer import Msprobe
from fault.record import record_candidate, record_reference
from fault.score import Saying, Score, judge_faulted, judge_unfaulted, saying_of
from fault.table import format_failures, format_faults, format_settings, format_unfaulted
from fault.truth import find_truth

STEPS_OF_NOISE = 3


def main() -> None:
    options = parse_options()
    kept = options.keep or options.reuse
    if options.keep:
        shutil.rmtree(options.keep, ignore_errors=True)
    cases = list(list_cases(options))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        root = kept or Path(temporary)
        if options.check:
            raise SystemExit(check_cases(cases, root, is_kept=kept is not None))
        scores = [score for case in cases for score in score_case(case, root, options, is_kept=kept is not None)]
    print_tables(scores)
    print(f"\n{len(cases)} cases in {time.perf_counter() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([describe_score(score) for score in scores], indent=1))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=SPLITS, default="tuning")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="pytorch")
    parser.add_argument("--model", action="append")
    parser.add_argument("--kind", action="append", choices=[*KINDS, UNFAULTED])
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--seeds", type=int, default=2, help="how many places are drawn for each model and kind")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--noise", default="", help="a legitimate difference beside the fault: split, wide, ...")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--by", choices=["auto", "truth", "growth"], default="auto", help="how compare judges")
    parser.add_argument("--unfaulted", action="store_true")
    parser.add_argument("--keep", type=Path, help="record into this folder, and leave the dumps there")
    parser.add_argument("--reuse", type=Path, help="take the dumps that are in this folder, and record what is missing")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--peer", choices=["msprobe"])
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has msprobe")
    parser.add_argument("--check", action="store_true", help="check the corpus, not compare")
    options = parser.parse_args()
    known = framework_of(options.framework)
    for wanted, names, what in (
        (options.model or [], known.models, "model"),
        ([options.noise], {**known.noises, **REWRITES}, "noise"),
    ):
        for name in wanted:
            if name not in names:
                parser.error(f"{what} {name!r} is not one of {', '.join(filter(None, names))}")
    return options


def list_cases(options: argparse.Namespace) -> Iterator[Case]:
    models = options.model or models_of(options.split, is_unfaulted=options.unfaulted, framework=options.framework)
    seeds = [options.seed] if options.seed is not None else seeds_of(options.split, options.seeds)
    is_unfaulted = options.unfaulted or options.kind == [UNFAULTED]
    for level in options.level or ["L1"]:
        for task in options.task or ["tensor"]:
            setting = Setting(level, task, options.dtype, options.steps, options.framework)
            for model in models:
                for seed in seeds:
                    found = list_unfaulted if is_unfaulted else list_faulted
                    yield from found(model, seed, setting, options)


def list_faulted(model: str, seed: int, setting: Setting, options: argparse.Namespace) -> Iterator[Case]:
    for kind in KINDS:
        is_wanted = not options.kind or kind in options.kind
        if is_wanted and is_fault_in(kind, setting) and kind in survey_model(model, setting.framework).places:
            yield Case(model, kind, seed, setting, options.noise)


def is_fault_in(kind: str, setting: Setting) -> bool:
    """L1 records no gradients of parameters, which alone show untied weights; bfloat16 is not lower than itself."""
    return not (kind == "untied" and setting.level == "L1") and not (
        kind == "precision" and setting.dtype == "bfloat16"
    )


def list_unfaulted(model: str, seed: int, setting: Setting, options: argparse.Namespace) -> Iterator[Case]:
    if options.kind == [UNFAULTED]:
        yield Case(model, UNFAULTED, seed, setting, options.noise)
        return
    rewrites = [rewrite for rewrite in REWRITES if rewrite in survey_model(model, setting.framework).rewrites]
    for noise in (*framework_of(setting.framework).noises, *rewrites):
        yield Case(model, UNFAULTED, seed, setting, noise)
        if noise:
            grown = replace(setting, steps=STEPS_OF_NOISE)
            yield Case(model, UNFAULTED, seed, grown, noise)


def score_case(case: Case, root: Path, options: argparse.Namespace, *, is_kept: bool) -> Iterator[Score]:
    reference = record_reference(case, root)
    candidate, changed = record_candidate(case, root)
    saying, seconds = ask_tensorprobe(reference, candidate, options.by)
    yield score_saying("tensorprobe", case, saying, (reference, candidate, changed), seconds)
    if options.peer:
        sayings, seconds = start_peer(options.peer_python).ask(reference, candidate, case.setting.steps)
        for way, saying in sayings.items():
            yield score_saying(way, case, saying, (reference, candidate, changed), seconds)
    if not is_kept:
        shutil.rmtree(candidate)


@functools.cache
def start_peer(python: str) -> Msprobe:
    peer = Msprobe(python)
    atexit.register(peer.close)
    return peer


def ask_tensorprobe(reference: Path, candidate: Path, by: str) -> tuple[Saying, float]:
    import tensorprobe

    began = time.perf_counter()
    try:
        saying = saying_of(tensorprobe.compare(reference, candidate, by=by))
    except Exception as error:  # the corpus goes on; the table counts it, and the case is printed
        saying = Saying("error", text=f"{type(error).__name__}: {error}")
    return saying, time.perf_counter() - began


def score_saying(tool: str, case: Case, saying: Saying, runs: tuple[Path, Path, str], seconds: float) -> Score:
    if not case.is_faulty:
        return Score(case, tool, judge_unfaulted(saying), saying, seconds=seconds)
    reference, candidate = read_dump(runs[0]), read_dump(runs[1])
    truth = find_truth(case, reference, candidate, runs[2])
    outcome, distance = judge_faulted(saying, truth, reference, candidate)
    return Score(case, tool, outcome, saying, distance, truth, seconds)


def check_cases(cases: list[Case], root: Path, *, is_kept: bool) -> int:
    """Print the cases that are not what they claim to be."""
    count = 0
    for case in cases:
        objection = check_case(case, root)
        if objection:
            count += 1
            print(f"{case.name} ({case.setting.level}): {objection}", flush=True)
        if not is_kept:
            shutil.rmtree(root / "candidate", ignore_errors=True)
    print(f"{len(cases)} cases, {count} of them are not as they should be")
    return 1 if count else 0


def check_case(case: Case, root: Path) -> str | None:
    reference = read_dump(record_reference(case, root))
    folder, changed = record_candidate(case, root)
    candidate = read_dump(folder)
    if case.noise in REWRITES:
        return find_rewrite_objection(reference, candidate)
    if not case.is_faulty:
        return find_unfaulted_objection(reference, candidate, is_noisy=case.noise in ("split", "wide"))
    return find_objection(find_truth(case, reference, candidate, changed), reference, candidate)


def print_tables(scores: list[Score]) -> None:
    failures = format_failures(scores)
    if failures:
        print(failures + "\n")
    faulted = [score for score in scores if score.case.is_faulty]
    if faulted:
        print(format_faults(faulted))
        print(format_settings(faulted))
    if len(faulted) < len(scores):
        print(format_unfaulted([score for score in scores if not score.case.is_faulty]))


def describe_score(score: Score) -> dict[str, object]:
    described = asdict(score)
    if score.truth:
        described["truth"] = {
            key: sorted(value) if isinstance(value, (set, frozenset)) else value
            for key, value in asdict(score.truth).items()
        }
    return described


if __name__ == "__main__":
    main()
