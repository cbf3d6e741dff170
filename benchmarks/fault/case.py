"""A case: one pair of runs, named so that it can be run again alone. Everything about it is drawn from its seed."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

from fault.framework import framework_of
from fault.kind import KINDS, REWRITES
from fault.place import Fault, Place, Plan
from fault.program import Program

LEVELS = ("L0", "L1", "mix")
TASKS = ("tensor", "statistics")
DTYPES = ("float32", "bfloat16")
SPLITS = ("tuning", "held-out")
FIRST_HELD_OUT_SEED = 1000
"""Seeds from here on are not looked at while compare is tuned, on any model."""
FACTORS = (0.5, 0.97, 1.02, 1.125, 2.0)
UNFAULTED = "none"


@dataclass(frozen=True)
class Setting:
    """How both runs are recorded."""

    level: str
    task: str
    dtype: str = "float32"
    steps: int = 1
    framework: str = "pytorch"

    @property
    def folder(self) -> str:
        return f"{self.framework}-{self.level}-{self.task}-{self.dtype}-{self.steps}"


@dataclass(frozen=True)
class Case:
    model: str
    kind: str
    seed: int
    setting: Setting
    noise: str = ""
    """What else differs in the candidate, legitimately; empty for nothing. See noise.py."""

    @property
    def name(self) -> str:
        return "-".join([self.model, self.kind, str(self.seed), *([self.noise] if self.noise else [])])

    @property
    def is_faulty(self) -> bool:
        return self.kind != UNFAULTED

    @property
    def command(self) -> str:
        """Runs it alone."""
        setting = self.setting
        words = ["python benchmarks/faults.py", f"--model {self.model}", f"--kind {self.kind}", f"--seed {self.seed}"]
        words += [f"--level {setting.level}", f"--task {setting.task}"]
        words += [f"--framework {setting.framework}"] if setting.framework != "pytorch" else []
        words += [f"--dtype {setting.dtype}"] if setting.dtype != "float32" else []
        words += [f"--steps {setting.steps}"] if setting.steps != 1 else []
        words += [f"--noise {self.noise}"] if self.noise else []
        return " ".join(words)


def seeds_of(split: str, count: int) -> list[int]:
    first = FIRST_HELD_OUT_SEED if split == "held-out" else 0
    return list(range(first, first + count))


def models_of(split: str, *, is_unfaulted: bool, framework: str = "pytorch") -> list[str]:
    """Held-out are models that tuning never saw, and the others with seeds that it never saw."""
    known = framework_of(framework)
    models = [model for model in known.models if split == "held-out" or model not in known.held_out]
    return models if is_unfaulted else [model for model in models if model not in known.deep]


def build_program(model: str, seed: int, plan: Plan, dtype: str = "float32") -> Program:
    """Always the same weights and batches for a seed."""
    plan.framework.seed(seed)
    program = plan.framework.models[model](plan)
    plan.framework.unsettle(program)
    program.step_seed = seed
    if dtype != "float32":
        plan.framework.change_dtype(program, dtype)
    plan.name_modules(program.model)
    return program


@dataclass(frozen=True)
class Survey:
    """What one step of a model offers."""

    places: dict[str, list[Place]]
    """Where each kind of fault can be planted; an empty list for those that need no place."""
    rewrites: frozenset[str]
    """What can be written differently in it."""
    calls: list[tuple[str, int]]
    """The calls of modules in the order in which they begin."""


@functools.cache
def survey_model(model: str, framework: str = "pytorch") -> Survey:
    plan = Plan(framework_of(framework))
    program = build_program(model, 0, plan)
    plan.framework.run_step(program, 0)
    places = {kind: places for kind, places in plan.offers.items() if kind in KINDS}
    places["detach"] = [place for place in places["detach"] if place.path != program.last]
    places |= {"data": [], "start": []}
    if "dropout_share" in places:
        places["seed"] = []
    if program.tied:
        places["untied"] = []
    return Survey(places, frozenset(plan.offers) & frozenset(REWRITES), plan.calls)


def draw_fault(case: Case) -> Fault | None:
    """Where the fault of this case is, and how large."""
    places = survey_model(case.model, case.setting.framework).places[case.kind]
    if not places:
        return None
    draw = random.Random(f"{case.model}/{case.kind}/{case.seed}")
    sites = sorted({(place.site, place.path) for place in places})
    chosen = draw.choice(sites)
    place = draw.choice([place for place in places if (place.site, place.path) == chosen])
    return Fault(case.kind, place, draw.choice(FACTORS))
