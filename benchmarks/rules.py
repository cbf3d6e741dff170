"""What is each rule of compare worth? Switches them off one by one, and looks which verdicts change.

    python benchmarks/rules.py --work DIR --pairs bert,shop      record these refactors or ports, and try all rules
    python benchmarks/rules.py --work DIR                        all that was recorded there
    python benchmarks/rules.py --work DIR --only piece --cases 20
    python benchmarks/rules.py --outside DIR DIR                 what benchmarks/outside/run.py --work DIR left there
    python benchmarks/rules.py --off truth.piece.pair_pieces,truth.cut.find_cut -- benchmarks/held_out.py --pair graph
                                                                 another benchmark, with these rules switched off

A rule is a function of compare/truth, judge or match that may find nothing: one that returns True or False, something
or None, or several things or none. Switched off, it says False, None, or nothing. It fires in a case if it says
something else there. Only where it fires can a verdict change, so only there is it tried, in `--cases` of them at most.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import io
import itertools
import json
import math
import multiprocessing
import os
import pkgutil
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the threads of its gradients do not go with a process that parts
sys.path.insert(0, str(Path(__file__).parent))

from held_out.answer import Answer
from held_out.comparison import compare_case
from held_out.record import PAIRS, Case, Recorder, Setting, find_pair_answer, list_cases
from outside import run as outside

from tensorprobe.__main__ import run as run_tensorprobe

PACKAGE = "tensorprobe.compare"
FOLDERS = ("truth", "judge", "match")
INDEX = "index.json"
PATIENCE_SECONDS = 60
NOTHING = {"bool": False, "list": [], "tuple": (), "Sequence": (), "set": set(), "Set": frozenset(), "dict": {}}
NOTHING |= {"Mapping": {}, "Iterator": (), "Iterable": (), "Collection": (), "frozenset": frozenset()}
GRADES = ("error", "not compared", "false alarm", "missed", "wrong", "near", "exact", "silent")
"""From bad to good."""


@dataclass(frozen=True)
class Rule:
    path: str
    """Its module below compare, and its name there."""
    kind: str
    sentence: str

    @property
    def module(self) -> str:
        return f"{PACKAGE}.{'.'.join(self.path.split('.')[:2])}"


@dataclass(frozen=True)
class Recorded:
    case: Case
    dumps: tuple[Path, Path]
    answer: Answer | None

    @property
    def is_right(self) -> bool:
        return self.answer is None

    def __str__(self) -> str:
        return f"{self.case.subject}: {self.case.name}"

    def judge(self, options: argparse.Namespace) -> tuple[str, str]:
        result = compare_case(self.case, (*self.dumps, self.answer), setting_of(options), "auto")
        return result.outcome, result.headline


@dataclass(frozen=True)
class RecordedOutside:
    name: str
    fault: outside.Fault | None
    dumps: tuple[Path, Path]

    @property
    def is_right(self) -> bool:
        return self.fault is None

    def __str__(self) -> str:
        return f"{self.name}: {'right' if self.fault is None else self.fault['name']}"

    def judge(self, options: argparse.Namespace) -> tuple[str, str]:
        sys.argv = ["tensorprobe", "compare", *map(str, self.dumps), "--processes", "1"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = run_tensorprobe()
        text = said.getvalue()
        return outside.judge(self.name, self.fault, code, text), "\n".join(outside.list_verdict(text))


AnyCase = Recorded | RecordedOutside


class Look(NamedTuple):
    outcome: str
    said: str
    fires: set[str]
    seconds: float


Looked = dict[str, Look]


def main() -> None:
    options = make_parser().parse_args()
    rules = [rule for rule in list_rules() if any(part in rule.path for part in options.only.split(","))]
    for rule in rules:
        importlib.import_module(rule.module)  # before the processes part
    if options.off:
        for rule in rules:
            if rule.path in options.off.split(","):
                switch(rule, fires=None)
        sys.argv = options.script
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    cases: list[AnyCase] = [one for folder in options.outside for one in list_outside(folder, options)]
    if options.work is not None:
        options.work = options.work.absolute()
        record_apart([name for name in options.pairs.split(",") if name], options)
        known = sorted(options.work.glob(f"*/{INDEX}"))
        cases += [one for path in known for one in list_recorded(path.parent)]
    began = time.perf_counter()
    compare(cases[0], options)  # what is imported on the way is there for all
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        look = functools.partial(find_fired, rules, options)
        looked = dict(zip(map(str, cases), pool.imap(look, cases, chunksize=1), strict=True))
        tasks = list(plan(rules, cases, looked, options.cases))
        print("\n".join(f"{one}: {look.outcome}, {look.seconds:.1f} s" for one, look in looked.items()))
        print(f"{len(cases)} cases in {time.perf_counter() - began:.0f} s; {len(tasks)} to try", flush=True)
        results = []
        for (rule, case), (outcome, said) in zip(
            tasks, pool.imap(functools.partial(try_without, options), tasks, chunksize=1), strict=True
        ):
            before, words, *_ = looked[str(case)]
            result = {"rule": rule.path, "case": str(case), "with": before, "without": outcome}
            results.append(result if said == words else result | {"said": words, "says": said})
            if (outcome, said) != (before, words):
                print(f"{rule.path}: {case}: {before} -> {outcome}", flush=True)
            if time.perf_counter() - began > options.seconds:
                print(f"{len(tasks) - len(results)} were not tried in this time")
                pool.terminate()
                break
    print("\n".join(build_table(rules, looked, results)))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="*", help="with --off: a benchmark, and its arguments")
    parser.add_argument("--off", default="", help="only run a benchmark, with these rules switched off")
    parser.add_argument("--only", default="truth.", help="only rules whose path contains one of these (a,b,…)")
    parser.add_argument("--pairs", default="", help="record these, with commas between them, where they are not there")
    parser.add_argument("--outside", type=Path, nargs="*", default=[], help="folders of benchmarks/outside/run.py")
    parser.add_argument("--faults", type=int, default=2, help="of each program there so many at most")
    parser.add_argument("--cases", type=int, default=8, help="try each rule in so many cases at most")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--task", choices=("tensor", "statistics"), default="tensor")
    parser.add_argument("--level", choices=("L1", "mix"), default="L1")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--work", type=Path, help="record into this folder, and take what is there already")
    parser.add_argument("--json", type=Path, help="write every result here")
    return parser


def list_rules() -> Iterator[Rule]:
    for folder in FOLDERS:
        package = importlib.import_module(f"{PACKAGE}.{folder}")
        for info in pkgutil.iter_modules(package.__path__):
            path = Path(package.__path__[0]) / f"{info.name}.py"
            for name, node in iter_functions(ast.parse(path.read_text()), ""):
                kind = kind_of(node)
                if kind is not None:
                    sentence = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
                    yield Rule(f"{folder}.{info.name}.{name}", kind, " ".join(sentence.split()))


def iter_functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from iter_functions(node, f"{prefix}{node.name}.")


def kind_of(node: ast.FunctionDef) -> str | None:
    """What it returns where it has found nothing; None if it always returns something."""
    if node.returns is None or node.name.startswith("__"):
        return None
    text = ast.unparse(node.returns)
    if text.endswith("| None"):
        return "None"
    head = text.partition("[")[0]
    return head if head in NOTHING else None


def switch(rule: Rule, fires: set[str] | None) -> None:
    """Off; or, with `fires`, only note there that it fires."""
    nothing = None if rule.kind == "None" else NOTHING[rule.kind]
    module = importlib.import_module(rule.module)
    names = rule.path.split(".")[2:]
    home = functools.reduce(getattr, names[:-1], module)
    old = vars(home)[names[-1]]
    if isinstance(old, property):
        new: Any = property(replace(rule, old.fget, nothing, fires))
    elif isinstance(old, functools.cached_property):
        new = functools.cached_property(replace(rule, old.func, nothing, fires))
        new.__set_name__(home, names[-1])
    elif isinstance(old, staticmethod):
        new = staticmethod(replace(rule, old.__func__, nothing, fires))
    else:
        new = replace(rule, old, nothing, fires)
    setattr(home, names[-1], new)
    if home is module:  # who has imported it by its name
        for other in [one for name, one in sys.modules.items() if name.startswith("tensorprobe.")]:
            for name, value in list(vars(other).items()):
                if value is old:
                    setattr(other, name, new)


def replace(rule: Rule, function: Any, nothing: Any, fires: set[str] | None) -> Callable[..., Any]:
    if fires is None:
        made = iter if rule.kind in ("Iterator", "Iterable") else (lambda one: one)
        copies = rule.kind in ("list", "set", "dict")
        return lambda *_, **__: type(nothing)() if copies else made(nothing)
    if rule.kind in ("Iterator", "Iterable"):

        def note_items(*arguments: Any, **named: Any) -> Iterator[Any]:
            for item in function(*arguments, **named):
                fires.add(rule.path)
                yield item

        return note_items

    def note(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        if rule.path not in fires and (found is not None if rule.kind == "None" else len_of(found) > 0):
            fires.add(rule.path)
        return found

    return note


def len_of(found: Any) -> int:
    return int(found) if isinstance(found, bool) else len(found) if hasattr(found, "__len__") else 1


def record_apart(subjects: Sequence[str], options: argparse.Namespace) -> None:
    """Each in a process of its own: none may part from one that has MindSpore in it."""
    missing = [one for one in subjects if not (options.work / one / INDEX).exists()]
    record_one = functools.partial(record, options.work, setting_of(options))
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        pool.map(record_one, missing, chunksize=1)


def setting_of(options: argparse.Namespace) -> Setting:
    return Setting(options.level, options.task, options.dtype)


def record(work: Path, setting: Setting, subject: str) -> None:
    if subject in PAIRS:
        from held_out.pair import set_up

        set_up()
    folder = work / subject
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder, setting)
    names = [[path.name for path in recorder.record(case)[:2]] for case in list_cases(subject)]
    (folder / INDEX).write_text(json.dumps(names))


def list_recorded(folder: Path) -> Iterator[Recorded]:
    names = json.loads((folder / INDEX).read_text())
    for case, dumps in zip(list_cases(folder.name), names, strict=True):
        answer = None if case.fault is None else find_pair_answer(case.subject, case.fault)
        yield Recorded(case, (folder / dumps[0], folder / dumps[1]), answer)


def list_outside(folder: Path, options: argparse.Namespace) -> Iterator[RecordedOutside]:
    """The right pairs, and the mistakes in them: what benchmarks/outside/run.py left in a folder."""
    for base in sorted(folder.glob(f"*-{options.task}-{options.level}-own")):
        name = base.name.rsplit("-", 3)[0]
        faults = json.loads((outside.HERE / name / "faults.json").read_text())
        for fault in [None, *faults][: options.faults + 1]:
            reference, candidate = (outside.find_folder(base, side, fault) / side for side in outside.SIDES)
            if reference.exists() and candidate.exists():
                yield RecordedOutside(name, fault, (reference, candidate))


def find_fired(rules: Sequence[Rule], options: argparse.Namespace, one: AnyCase) -> Look:
    fires: set[str] = set()
    for rule in rules:
        switch(rule, fires)
    began = time.perf_counter()
    return Look(*compare(one, options), fires, time.perf_counter() - began)


def plan(rules: Sequence[Rule], cases: Sequence[AnyCase], looked: Looked, most: int) -> Iterator[tuple[Rule, AnyCase]]:
    """One case of each rule first, then one more of each: a right one and a mistake in turn, the quickest first, but
    not the same ones for all rules."""
    fired = {rule: [one for one in cases if rule.path in looked[str(one)].fires] for rule in rules}
    order = {rule: list(alternate(own, looked, number)) for number, (rule, own) in enumerate(fired.items())}
    for place in range(most):
        for rule, own in order.items():
            if place < len(own):
                yield rule, own[place]


def alternate(own: Sequence[AnyCase], looked: Looked, turn: int) -> Iterator[AnyCase]:
    quickest = sorted(own, key=lambda one: looked[str(one)].seconds)
    kinds = [[one for one in quickest if one.is_right], [one for one in quickest if not one.is_right]]
    turned = [kind[turn % half :] + kind[: turn % half] for kind in kinds if (half := (len(kind) + 1) // 2)]
    for group in itertools.zip_longest(*turned):
        yield from (one for one in group if one is not None)


def try_without(options: argparse.Namespace, task: tuple[Rule, AnyCase]) -> tuple[str, str]:
    rule, one = task
    switch(rule, fires=None)
    return compare(one, options)


def compare(one: AnyCase, options: argparse.Namespace) -> tuple[str, str]:
    signal.signal(signal.SIGALRM, end_of_patience)
    signal.alarm(PATIENCE_SECONDS)
    complaint = io.StringIO()
    with contextlib.redirect_stderr(complaint):
        found = one.judge(options)
    signal.alarm(0)
    return found


def end_of_patience(*_: Any) -> None:
    raise TimeoutError


def build_table(rules: Sequence[Rule], looked: Looked, results: list[dict[str, str]]) -> list[str]:
    lines = ["| rule | fires in | tried | worse | better | reworded | what it does |", "|---|---|---|---|---|---|---|"]
    for rule in rules:
        own = [one for one in results if one["rule"] == rule.path]
        change = [GRADES.index(one["without"]) - GRADES.index(one["with"]) for one in own]
        fired = sum(rule.path in look.fires for look in looked.values())
        worse, better = sum(one < 0 for one in change), sum(one > 0 for one in change)
        reworded = sum(not one and "says" in each for one, each in zip(change, own, strict=True))
        counts = " | ".join(str(count or "") for count in (worse, better, reworded))
        lines.append(f"| `{rule.path}` | {fired} | {len(own)} | {counts} | {rule.sentence} |")
    return lines


if __name__ == "__main__":
    main()
