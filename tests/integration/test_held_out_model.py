"""The held-out third-party models mean the same however they are run, and each fault is what it says."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.script import run_script

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from held_out.check import check_model
    from held_out.model import Training
    from held_out.patch import Fault
    from held_out.record import Recorder, Setting, list_cases, make_model_answer, read_lines
    from held_out.third_party import MODELS, find_installed
    from held_out.weight import measure_difference
finally:
    sys.path.remove(str(BENCHMARKS))


def list_models(*short: str) -> list[Any]:
    """All of them; the short form takes those that are named."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(not model.is_installed, reason=f"{model.library} is not installed"),
                *(() if name in short else (pytest.mark.long,)),
            ],
        )
        for name, model in MODELS.items()
    ]


@pytest.mark.parametrize("name", list_models("olmoe"))
def test_all_ways_to_run_a_model_agree_and_each_fault_changes_what_it_says(name: str) -> None:
    assert list(check_model(name)) == []


@pytest.mark.parametrize("name", list_models("qwen3", "convnext"))
def test_each_model_runs_in_bfloat16(name: str) -> None:
    (step,) = Training(MODELS[name], "bfloat16").run()

    assert math.isfinite(step.loss)


def test_there_are_twenty_models_or_more_with_five_faults_or_more_and_faults_of_all_kinds() -> None:
    faults = [fault for model in MODELS.values() for fault in model.faults]

    assert len(MODELS) >= 20
    assert all(len(model.faults) >= 5 for model in MODELS.values())
    assert all(any(fault.is_backward for fault in model.faults) for model in MODELS.values())
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


def test_each_fault_is_in_modules_that_the_model_has() -> None:
    for name in find_installed():
        paths = {path for path, _ in MODELS[name].build("float32").named_modules()}
        for fault in MODELS[name].faults:
            assert fault.modules | {fault.module} <= paths, (name, fault.name)


def test_a_library_is_imported_only_for_its_models(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\nimport held_out.third_party\n"

    run_script(tmp_path, program + "sys.exit('diffusers' in sys.modules)\n")


def test_a_model_whose_library_is_missing_is_left_out_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"here": MODELS["qwen3"], "away": replace(MODELS["unet"], library="no_such_library")}

    assert find_installed(models) == ["here"]
    assert capsys.readouterr().err == "away is left out: pip install no_such_library\n"


def test_a_wrong_buffer_is_an_answer_by_its_name() -> None:
    fault = Fault("wrong buffer", "model.rotary_emb", "mul", setting=("inv_freq", torch.ones(4)))

    assert make_model_answer(fault, frozenset()).parameter == "model.rotary_emb.inv_freq"
    assert make_model_answer(MODELS["gpt_neox"].faults[0], frozenset()).parameter == ""
