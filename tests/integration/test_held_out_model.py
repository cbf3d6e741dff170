"""The held-out models of transformers mean the same however they are run, and each fault is what it says."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from held_out.check import check_model
    from held_out.model import Training
    from held_out.patch import Fault
    from held_out.record import Recorder, Setting, list_cases, read_lines
    from held_out.third_party import MODELS
    from held_out.weight import measure_difference
finally:
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", MODELS)
def test_all_ways_to_run_a_model_agree_and_each_fault_changes_what_it_says(name: str) -> None:
    assert list(check_model(name)) == []


@pytest.mark.parametrize("name", MODELS)
def test_each_model_runs_in_bfloat16(name: str) -> None:
    (step,) = Training(MODELS[name], "bfloat16").run()

    assert math.isfinite(step.loss)


def test_there_are_eight_models_or_more_with_four_faults_or_more_and_faults_of_all_kinds() -> None:
    faults = [fault for model in MODELS.values() for fault in model.faults]

    assert len(MODELS) >= 8
    assert all(len(model.faults) >= 4 for model in MODELS.values())
    assert any(fault.is_backward for fault in faults)
    assert any(not fault.has_effect for fault in faults)
    assert any(fault.first_step == 2 and fault.steps == 3 for fault in faults)
    assert any(fault.second is not None for fault in faults)
    assert any(fault.variant for fault in faults)


def test_a_fault_is_gone_after_its_run() -> None:
    model = MODELS["bloom"]
    (before,) = Training(model).run()
    for fault in model.faults:
        list(Training(model, fault=fault).run())
    (after,) = Training(model).run()

    assert measure_difference(after, before) == (0, 0)


def test_a_recorded_fault_has_its_answer_and_the_edited_line(tmp_path: Path) -> None:
    case = next(case for case in list_cases("qwen3") if case.name == "groups of values tiled")
    reference, candidate, answer = Recorder(tmp_path, Setting("L1", "statistics")).record(case)

    assert answer is not None
    assert answer.modules == {"model.layers.0.self_attn"}
    named = [name for name, line in read_lines(candidate, "*/modeling_*.py").items() if line in answer.lines]
    assert any(".repeat." in name for name in named)
    assert answer.lines.isdisjoint(read_lines(reference, "*/modeling_*.py").values())  # repeat_kv has lines of its own


def test_a_fault_whose_text_is_not_there_is_an_error() -> None:
    fault = Fault("wrong text", "model.layers.0.mlp", "add", "nowhere", "anywhere")

    with pytest.raises(ValueError, match=r"wrong text: Qwen3MLP.forward has 'nowhere' 0 times"):
        list(Training(MODELS["qwen3"], fault=fault).run())
