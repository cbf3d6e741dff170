"""The callback for the `Trainer` of transformers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import tensorprobe
from tensorprobe import ConfigError
from tensorprobe.integrations.transformers import TensorprobeCallback
from tests.integrations import trainer_program
from tests.integrations.dump import count_calls, run_of
from tests.integrations.page import TWO_RANKS, recorded_steps, run_program, try_program
from tests.integrations.trainer_program import STEPS, Interruption, are_equal, train

PROGRAM = trainer_program.__file__
HEAD = "lm_head.Linear"


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_losses_weights_and_random_numbers_are_those_without_the_callback(options: dict[str, Any]) -> None:
    plain = train([], **options)
    assert are_equal(plain, train([TensorprobeCallback("dump")], **options))
    assert recorded_steps() == [f"step{number}/rank" for number in range(STEPS)]


def test_a_step_holds_all_its_micro_batches_and_no_evaluation() -> None:
    train([TensorprobeCallback("dump", level="L0")], eval_on_start=True)
    assert [count_calls(step, HEAD) for step in range(STEPS)] == [(2, 2)] * STEPS
    assert all(run_of(step)["complete"] for step in range(STEPS))


def test_a_resumed_training_goes_on_with_the_number_of_its_checkpoint_and_agrees() -> None:
    train([TensorprobeCallback("whole")])
    train([TensorprobeCallback("resumed")], resume="out/checkpoint-2", folder="other")
    assert recorded_steps("resumed") == ["step2/rank", "step3/rank"]
    comparison = tensorprobe.compare("whole", "resumed")
    assert comparison, comparison.verdict.headline


class ModeCount(TrainerCallback):
    """How many modes of torch are installed inside each step, and how many hooks the model has."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        hooks = sum(len(module._forward_pre_hooks) for module in kwargs["model"].modules())
        self.found[state.global_step] = torch._C._len_torch_function_stack() + hooks


def test_nothing_is_installed_in_steps_that_are_filtered_out() -> None:
    count = ModeCount()
    train([TensorprobeCallback("dump", step=[1]), count])
    assert recorded_steps() == ["step1/rank"]
    assert count.found.pop(1) > 0 and set(count.found.values()) == {0}


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 2


def test_a_training_that_stops_early_leaves_whole_steps() -> None:
    train([TensorprobeCallback("dump"), Stop()])
    assert recorded_steps() == ["step0/rank", "step1/rank"]
    assert run_of(0)["complete"] and run_of(1)["complete"]


def test_after_an_exception_the_next_training_completes_the_dump_and_records_its_own() -> None:
    with pytest.raises(KeyboardInterrupt):
        train([TensorprobeCallback("first", level="L0"), Interruption(1)])
    train([TensorprobeCallback("second", level="L0")])
    assert recorded_steps("first") == ["step0/rank", "step1/rank"]
    assert count_calls(1, HEAD, "first") == (1, 1)
    assert [count_calls(step, HEAD, "second") for step in range(STEPS)] == [(2, 2)] * STEPS


def test_ctrl_c_in_a_program_leaves_a_dump_that_says_so() -> None:
    assert try_program(PROGRAM, "interrupt").returncode != 0
    assert recorded_steps() == ["step0/rank", "step1/rank"]
    assert run_of(0)["complete"] and run_of(1)["ended"] == "KeyboardInterrupt"


def test_two_ranks_under_torchrun_train_as_without_it_and_have_the_names_of_one() -> None:
    run_program(*TWO_RANKS, PROGRAM, "distributed")
    assert Path("equal0").exists() and Path("equal1").exists()
    assert recorded_steps() == [f"step{step}/rank{rank}" for step in range(STEPS) for rank in range(2)]
    assert count_calls(0, HEAD, rank="rank1") == (2, 2)


def test_a_wrong_option_is_an_error_before_the_training() -> None:
    with pytest.raises(ConfigError, match="level 'L3' is not one of L0, L1, mix, debug"):
        TensorprobeCallback("dump", level="L3")


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorprobe.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError) as raised:
        importlib.import_module("tensorprobe.integrations.transformers")
    assert str(raised.value) == ("tensorprobe.integrations.transformers needs transformers: pip install transformers")
