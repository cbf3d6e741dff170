"""Both runs of a case, recorded by tensorprobe into folders. A reference is recorded once and serves many cases."""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

import torch

from fault.case import UNFAULTED, Case, Setting, build_program, draw_fault, run_step
from fault.kind import KINDS, REWRITES
from fault.noise import NOISES
from fault.onednn import onednn
from fault.place import Plan
from fault.program import Program
from tensorprobe.pytorch import PrecisionDebugger


def record_reference(case: Case, root: Path) -> Path:
    setting = case.setting
    folder = root / "reference" / setting.folder / f"{case.model}-{case.seed}"
    if not is_complete(folder):
        with onednn(setting.dtype == "float32"):
            record_program(build_program(case.model, case.seed, Plan(), setting.dtype), setting, folder)
    return folder


def record_candidate(case: Case, root: Path) -> tuple[Path, str]:
    """And what was changed from outside, if anything was."""
    setting = case.setting
    folder = root / "candidate" / setting.folder / case.name
    fault = None if case.kind == UNFAULTED else draw_fault(case)
    plan = Plan(fault, case.noise if case.noise in REWRITES else "")
    program = build_program(case.model, case.seed, plan, setting.dtype)
    changed = ""
    if case.kind in KINDS and (change := KINDS[case.kind].change):
        changed = change(program, random.Random(f"{case.model}/{case.kind}/{case.seed}"))
        plan.name_modules(program.model)
    if not is_complete(folder):
        with onednn(setting.dtype == "float32"), NOISES.get(case.noise, NOISES[""])():
            record_program(program, setting, folder)
        if fault and not plan.was_planted:
            raise RuntimeError(f"{case.name}: {fault.place} was not reached")
    return folder, changed


def is_complete(folder: Path) -> bool:
    return (folder / "complete").exists()


def record_program(program: Program, setting: Setting, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    logging.getLogger("tensorprobe").setLevel(logging.ERROR)
    optimizer = torch.optim.SGD(program.model.parameters(), lr=program.learning_rate)
    debugger = PrecisionDebugger(dump_path=str(folder), task=setting.task, level=setting.level)
    try:
        for step in range(setting.steps):
            debugger.start(model=program.model)
            run_step(program, step)
            debugger.stop()
            optimizer.step()
            optimizer.zero_grad()
            debugger.step()
    finally:
        PrecisionDebugger._reset()
    (folder / "complete").touch()
