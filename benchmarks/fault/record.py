"""Both runs of a case, recorded by tensorprobe into folders. A reference is recorded once and serves many cases."""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

from fault.case import UNFAULTED, Case, Setting, build_program, draw_fault
from fault.framework import framework_of
from fault.kind import KINDS, REWRITES
from fault.place import Plan
from fault.program import Program


def record_reference(case: Case, root: Path) -> Path:
    setting = case.setting
    folder = root / "reference" / setting.folder / f"{case.model}-{case.seed}"
    if not is_complete(folder):
        plan = Plan(framework_of(setting.framework))
        with plan.framework.kernels(setting.dtype):
            record_program(build_program(case.model, case.seed, plan, setting.dtype), setting, folder)
    return folder


def record_candidate(case: Case, root: Path) -> tuple[Path, str]:
    """And what was changed from outside, if anything was."""
    setting = case.setting
    framework = framework_of(setting.framework)
    folder = root / "candidate" / setting.folder / case.name
    fault = None if case.kind == UNFAULTED else draw_fault(case)
    plan = Plan(framework, fault, case.noise if case.noise in REWRITES else "")
    program = build_program(case.model, case.seed, plan, setting.dtype)
    changed = ""
    if case.kind in KINDS and not KINDS[case.kind].needs_place:
        changed = framework.changes[case.kind](program, random.Random(f"{case.model}/{case.kind}/{case.seed}"))
        plan.name_modules(program.model)
    if not is_complete(folder):
        with framework.kernels(setting.dtype), framework.noises.get(case.noise, framework.noises[""])():
            record_program(program, setting, folder)
        if fault and not plan.was_planted:
            raise RuntimeError(f"{case.name}: {fault.place} was not reached")
    return folder, changed


def is_complete(folder: Path) -> bool:
    return (folder / "complete").exists()


def record_program(program: Program, setting: Setting, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    logging.getLogger("tensorprobe").setLevel(logging.ERROR)
    framework_of(setting.framework).record(program, setting.level, setting.task, setting.steps, folder)
    (folder / "complete").touch()
