"""A program that is recorded twice, as PyTorch and as MindSpore would have written it down, and the two compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorprobe
from tensorprobe.compare.result import CallResult, Comparison
from tests.compare.recording import Recording, Traced

RNG = np.random.default_rng(3)
X, Y = (RNG.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
W = RNG.standard_normal((6, 6)).astype(np.float32)
V = RNG.standard_normal((6, 6)).astype(np.float32)
BIAS = RNG.standard_normal(6).astype(np.float32)
Program = Callable[[Recording], Any]


def compared(
    tmp_path: Path, reference: Program, candidate: Program, level: str = "mix", framework: str = "mindspore"
) -> Comparison:
    runs = Recording(level=level), Recording(level=level, framework=framework)
    reference(runs[0])
    candidate(runs[1])
    return tensorprobe.compare(runs[0].write(tmp_path / "reference"), runs[1].write(tmp_path / "candidate"))


def pairs(found: Comparison) -> dict[str, str]:
    """The calls of the reference and what they stand against, groups joined by `+`."""

    def join(calls: tuple[Any, ...]) -> str:
        return " + ".join(call.name.removesuffix(".forward") for call in calls)

    return {join(call.reference): join(call.candidate) for call in found.ranks[0].calls}


def lonely(found: Comparison) -> list[str]:
    rank = found.ranks[0]
    return [one.call.name for one in (*rank.only_reference, *rank.only_candidate) if not one.is_idle]


def call_named(found: Comparison, name: str) -> CallResult:
    return next(call for call in found.ranks[0].calls if call.name == name)


def linear(run: Recording, x: Traced, weight: np.ndarray = W) -> Traced:
    name = "Functional.linear" if run.framework == "pytorch" else "Functional.dense"
    return run.api(name, x, run.data(weight, requires_grad=True), output=x.array @ weight.T)
