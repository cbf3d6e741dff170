"""What of the older judgement stands beside that by truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tensorprobe.compare.truth.decision import _writes_otherwise
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue
from tensorprobe.run.call import name_call

MEAN = np.random.default_rng(0).standard_normal(8)
NORM = "Functional.batch_norm.0.forward"


def make_step(name: str, kept: float | None) -> TrueStep:
    """A norm that leaves a mean for the next step, or none."""
    result = TrueValue(0, MEAN[::-1], "float32", NORM, "output.0")
    values = [result] if kept is None else [result, TrueValue(1, kept * MEAN, "float32", NORM, "written.0")]
    made = {value.slot: value.number for value in values}
    return TrueStep(
        name, {NORM: TrueCall(NORM, 0, "pytorch", "Functional", "batch_norm", "", None, {}, made)}, values, Coverage()
    )


@pytest.mark.parametrize(
    ("reference", "candidate", "is_told"), [(1.0, 0.5, True), (1.0, 1.0, False), (1.0, None, False)]
)
def test_what_one_run_alone_keeps_the_other_does_not_keep_otherwise(
    reference: float, candidate: float | None, is_told: bool
) -> None:
    steps = {"reference": make_step("reference", reference), "candidate": make_step("candidate", candidate)}
    judgement = SimpleNamespace(steps=steps, counterparts=Counterparts(steps["reference"], steps["candidate"]))
    grown = SimpleNamespace(call=SimpleNamespace(reference=[name_call(NORM)], candidate=[name_call(NORM)]))
    assert _writes_otherwise(cast(Any, grown), cast(Any, judgement)) is is_told
