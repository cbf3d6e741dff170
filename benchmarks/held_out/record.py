"""Records both sides of a case, and finds the lines of calls in what was recorded."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from held_out import fault as pair_fault
from held_out import patch
from held_out.answer import Answer, Line
from held_out.fault import SIDES, find_lines
from held_out.model import Training
from held_out.source import NETWORKS, PAIRS, REFACTORS, files_of, load_network, path_of
from held_out.third_party import MODELS
from held_out.variant import PLAIN, VARIANTS, Variant
from held_out.weight import Step
from tensorprobe import pytorch as pytorch_face

__all__ = ["NETWORKS", "PAIRS", "REFACTORS"]
_FRAME = re.compile(r"^File (.*), line (\d+), in ")


@dataclass(frozen=True)
class Setting:
    level: str = "L1"
    task: str = "tensor"
    dtype: str = "float32"


@dataclass(frozen=True)
class Case:
    subject: str
    name: str
    fault: pair_fault.Fault | patch.Fault | None = None
    variant: Variant = PLAIN
    steps: int = 1

    @property
    def is_pair(self) -> bool:
        return self.subject in (*PAIRS, *REFACTORS)

    @property
    def files(self) -> str:
        """A pattern of its files; frames of other files say nothing of where a call is."""
        return f"*/{self.subject}_*.py" if self.is_pair else MODELS[self.subject].files


def list_cases(subject: str) -> list[Case]:
    """Right ones first: of a pair one step and three, of a model the same run twice and each other way to run it."""
    if subject in (*PAIRS, *REFACTORS):
        right = [Case(subject, "right"), Case(subject, "right, three steps", steps=3)]
        faults = load_network(subject, "reference").FAULTS
        return [*right, *(Case(subject, one.name, one, steps=one.steps) for one in faults)]
    model = MODELS[subject]
    right = [Case(subject, one.name or "right", variant=one, steps=one.steps) for one in (PLAIN, *model.variants)]
    faults = [Case(subject, one.name, one, VARIANTS[one.variant], one.steps) for one in model.faults]
    return [*right, *faults]


@dataclass
class Recorder:
    folder: Path
    setting: Setting
    _references: dict[tuple[Any, ...], Path] = field(default_factory=dict)

    def record(self, case: Case) -> tuple[Path, Path, Answer | None]:
        """The dumps of reference and candidate, and where the fault is. References without a fault are kept."""
        if case.is_pair:
            return self._record_pair(case)
        return self._record_model(case)

    def _record_pair(self, case: Case) -> tuple[Path, Path, Answer | None]:
        if case.subject in REFACTORS:
            from held_out import rewrite as pair

            settings: dict[str, Any] = {"dtype": self.setting.dtype}
        else:
            from held_out import pair

            settings = {}
        fault = case.fault
        assert fault is None or isinstance(fault, pair_fault.Fault)
        paths = []
        for side, run in zip(SIDES, (pair.run_reference, pair.run_candidate), strict=True):
            is_faulty = fault is not None and fault.side == side
            key = (case.subject, side, case.steps, case.name if is_faulty else "")
            if key not in self._references:
                path = self.folder / f"{len(self._references)}_{case.subject}_{side}"
                module = load_network(case.subject, side, fault, path.with_name(f"{path.name}_source"))
                framework = side if case.subject in PAIRS else "reference"
                train = partial(run, module, case.steps, **settings)
                self._run(framework, path, lambda debugger, train=train: train(debugger=debugger))
                self._references[key] = path
            paths.append(self._references[key])
        return paths[0], paths[1], None if fault is None else find_pair_answer(case.subject, fault)

    def _record_model(self, case: Case) -> tuple[Path, Path, Answer | None]:
        fault = case.fault
        assert fault is None or isinstance(fault, patch.Fault)
        model = MODELS[case.subject]
        key = (case.subject, case.steps)
        if key not in self._references:
            path = self.folder / f"{case.subject}_reference_{case.steps}"
            training = Training(model, self.setting.dtype, steps=case.steps)
            self._run("reference", path, training.run)
            self._references[key] = path
        name = re.sub(r"\W+", "_", case.name)
        path = self.folder / f"{case.subject}_candidate_{name}"
        training = Training(model, self.setting.dtype, case.variant, fault, case.steps)
        self._run("reference", path, training.run)
        answer = None if fault is None else make_model_answer(fault, training.lines)
        return self._references[key], path, answer

    def _run(self, side: str, path: Path, run: Callable[[Any], Iterable[Step]]) -> None:
        """All steps, by the debugger of the framework of this side of a pair; that of a reference is PyTorch."""
        if side == "reference":
            face: Any = pytorch_face
        else:
            from tensorprobe import mindspore as face
        face.PrecisionDebugger.reset()
        try:
            debugger = face.PrecisionDebugger(dump_path=str(path), level=self.setting.level, task=self.setting.task)
            for _ in run(debugger):
                pass
        finally:
            face.PrecisionDebugger.reset()


def find_pair_answer(subject: str, fault: pair_fault.Fault) -> Answer:
    text = path_of(subject).read_text()
    files = files_of(subject)
    second = None
    if fault.second is not None:
        lines = find_lines(text, fault.second[0])
        second = Answer(frozenset((file, line) for file in files for line in lines))
    lines = find_lines(text, fault.at)
    around = tuple((file, *extent) for file in files for extent in find_functions(text, lines))
    answer = frozenset((file, line) for file in files for line in lines)
    return Answer(answer, around, parameter=fault.parameter, has_effect=fault.has_effect, second=second)


def find_functions(text: str, lines: frozenset[int]) -> list[tuple[int, int]]:
    """The first and last lines of the functions around these lines."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    extents = [(node.lineno, node.end_lineno or node.lineno) for node in functions]
    return [(first, last) for first, last in extents if any(first <= line <= last for line in lines)]


def make_model_answer(fault: patch.Fault, lines: frozenset[Line]) -> Answer:
    second = None if fault.second is None else make_model_answer(fault.second, frozenset())
    return Answer(
        lines,
        modules=fault.modules,
        words=frozenset(fault.words.split()),
        is_setting=fault.setting is not None,
        parameter=fault.buffer,
        has_effect=fault.has_effect,
        second=second,
    )


def read_lines(folder: Path, files: str) -> dict[str, Line]:
    """Of each record of a dump, all steps of it: its innermost line in a file whose path fits the pattern."""
    found: dict[str, Line] = {}
    for path in sorted(folder.glob("step*/*/stack.json")):
        for names, frames in json.loads(path.read_text()).values():
            line = _find_line(frames, files)
            if line is not None:
                found.update(dict.fromkeys(names, line))
    return found


def _find_line(frames: list[str], files: str) -> Line | None:
    for frame in frames:
        match = _FRAME.match(frame)
        if match is not None and fnmatch(match[1], files):
            return Path(match[1]).name, int(match[2])
    return None
