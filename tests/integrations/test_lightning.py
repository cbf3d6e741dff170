"""The callback for the `Trainer` of Lightning."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import tensorprobe
from tensorprobe import ConfigError
from tensorprobe.integrations.lightning import TensorprobeCallback
from tests.integrations.dump import count_calls, records_of, run_of
from tests.integrations.lightning_program import STEPS, ManualNet, Net, TwoOptimizers, train
from tests.integrations.page import recorded_steps

HEAD = "head.Linear"
ALL_STEPS = [f"step{number}/rank" for number in range(STEPS)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("net", [Net, ManualNet])
def test_losses_weights_and_random_numbers_are_those_without_the_callback(net: type[Net], precision: str) -> None:
    plain = train(net, [], precision=precision)
    recorded = train(net, [TensorprobeCallback("dump")], precision=precision)
    assert len(plain) == len(recorded) and all(map(torch.equal, plain, recorded))
    assert recorded_steps() == ALL_STEPS


@pytest.mark.parametrize("net", [Net, ManualNet])
def test_a_step_holds_all_its_batches_and_no_validation_in_the_middle_of_it(net: type[Net]) -> None:
    train(net, [TensorprobeCallback("dump", level="L0")])
    assert [count_calls(step, HEAD) for step in range(STEPS)] == [(2, 2)] * STEPS
    assert all(run_of(step)["complete"] for step in range(STEPS))


def test_the_work_of_the_optimizer_is_not_recorded_with_automatic_optimization() -> None:
    train(Net, [TensorprobeCallback("dump")], gradient_clip_val=0.1)
    callers = {record.get("caller") for record in records_of(0).values()}
    assert callers == {None, "logging"}


def test_two_optimizers_in_one_batch_are_one_step_under_the_number_it_begins_with() -> None:
    train(TwoOptimizers, [TensorprobeCallback("dump", level="L0")])
    assert recorded_steps() == ["step0/rank", "step2/rank"]
    assert [count_calls(step, HEAD) for step in (0, 2)] == [(2, 2)] * 2


def test_a_resumed_training_goes_on_with_the_number_of_its_checkpoint_and_agrees() -> None:
    class WithoutDropout(Net):  # Lightning restores no random numbers, and begins an epoch anew
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.body[2].p = 0.0
            return super().training_step(batch, index)

    train(WithoutDropout, [TensorprobeCallback("whole")], max_steps=6)
    train(WithoutDropout, [TensorprobeCallback("resumed")], max_steps=6, resume="out/step=4.ckpt")
    assert recorded_steps("resumed") == ["step4/rank", "step5/rank"]
    comparison = tensorprobe.compare("whole", "resumed")
    assert comparison, comparison.verdict.headline


class ModeCount(pl.Callback):
    """How many modes of torch are installed inside each step."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor) -> None:
        self.found[trainer.global_step] = torch._C._len_torch_function_stack()


def test_nothing_is_installed_in_steps_that_are_filtered_out() -> None:
    count = ModeCount()
    train(Net, [TensorprobeCallback("dump", step=[1]), count])
    assert recorded_steps() == ["step1/rank"]
    assert count.found.pop(1) > 0 and set(count.found.values()) == {0}


class Failure(pl.Callback):
    """An exception before the second batch of step 1."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_start(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if arguments[-1] == 3:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("no more"), KeyboardInterrupt()], ids=["exception", "Ctrl-C"])
def test_what_ends_the_training_is_in_the_dump_which_is_complete_at_once(error: BaseException) -> None:
    with pytest.raises((ValueError, KeyboardInterrupt, SystemExit)):
        train(Net, [Failure(error), TensorprobeCallback("dump", level="L0")])
    assert recorded_steps() == ALL_STEPS[:2]
    assert run_of(1)["ended"].startswith(type(error).__name__) and count_calls(1, HEAD) == (1, 1)


def test_a_batch_that_the_module_refuses_leaves_no_window_open() -> None:
    class Refusing(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

    train(Refusing, [TensorprobeCallback("dump", level="L0")], max_steps=-1, max_epochs=2, val_check_interval=1.0)
    assert [count_calls(step, HEAD) for step in range(2)] == [(2, 2)] * 2


def test_a_wrong_option_is_an_error_before_the_training() -> None:
    with pytest.raises(ConfigError, match="level 'L3' is not one of L0, L1, mix, debug"):
        TensorprobeCallback("dump", level="L3")


def import_again(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> Any:
    """The file, imported where these packages are not installed."""
    monkeypatch.delitem(sys.modules, "tensorprobe.integrations.lightning")
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    return importlib.import_module("tensorprobe.integrations.lightning")


def test_the_callback_belongs_to_the_package_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(TensorprobeCallback, pl.Callback)
    kind = import_again(monkeypatch, "lightning").TensorprobeCallback
    assert issubclass(kind, importlib.import_module("pytorch_lightning").Callback)


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError) as raised:
        import_again(monkeypatch, "lightning", "pytorch_lightning")
    assert str(raised.value) == "tensorprobe.integrations.lightning needs Lightning: pip install lightning"
