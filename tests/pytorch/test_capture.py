"""`with tensorprobe.capture(model, dump_path) as run:`, the engine as a context manager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe import ConfigError, UsageError
from tests.pytorch.program import DUMP, dump_of, files_in, make_net, train_step


def test_what_runs_in_the_block_is_recorded_step_by_step() -> None:
    model, x = make_net()
    with tensorprobe.capture(model, DUMP, level="mix") as run:
        for _ in range(2):
            train_step(model, x)
            run.step()
    model(x)
    assert files_in(DUMP) == ["step0", "step1"]
    assert list(dump_of(0).records) == list(dump_of(1).records)
    assert "Module.fc.Linear.parameters_grad" in dump_of(1).records


def record_steps(count: int) -> None:
    with tensorprobe.capture(dump_path=DUMP, level="L1", task="tensor") as run:
        for _ in range(count):
            torch.ones(2)
            run.step()


def test_a_second_block_in_one_process_is_a_run_of_its_own_that_replaces_the_first() -> None:
    record_steps(3)
    first = dump_of().read("run.json")["run_id"]
    record_steps(2)
    assert files_in(DUMP) == ["step0", "step1"]
    assert {dump_of(step).read("run.json")["run_id"] for step in (0, 1)} == {f"{first}.2"}


def test_a_block_in_which_nothing_happens_leaves_an_earlier_run_as_it_was() -> None:
    record_steps(2)
    before = {path: path.stat().st_mtime_ns for path in DUMP.rglob("*.*")}
    with tensorprobe.capture(dump_path=DUMP, level="L1"):
        pass
    assert {path: path.stat().st_mtime_ns for path in DUMP.rglob("*.*")} == before


def test_single_points_replace_an_earlier_run_too() -> None:
    record_steps(2)
    with tensorprobe.capture(dump_path=DUMP, level="debug") as run:
        run.save(torch.ones(2), "x")
    assert files_in(DUMP) == ["step0"] and files_in(DUMP / "step0" / "rank") == ["debug.json", "run.json"]


def test_without_step_everything_is_in_step0() -> None:
    model, x = make_net()
    with tensorprobe.capture(model, DUMP):
        train_step(model, x)
    assert files_in(DUMP) == ["step0"] and dump_of().read("run.json")["complete"] is True


def test_the_level_is_mix_with_a_model_and_l1_without_one() -> None:
    model, _ = make_net()
    assert tensorprobe.capture(model, DUMP).config.level == "mix"
    with tensorprobe.capture(dump_path=DUMP) as run:
        torch.ones(2)
    assert run.config.level == "L1" and list(dump_of().records) == ["Torch.ones.0.forward"]


def test_a_file_decides_the_level_where_there_is_one() -> None:
    Path("config.json").write_text(json.dumps({"level": "L0"}))
    model, _ = make_net()
    assert tensorprobe.capture(model, DUMP, config_path="config.json").config.level == "L0"


def test_every_key_of_the_configuration_is_an_argument() -> None:
    model, x = make_net()
    with tensorprobe.capture(model, DUMP, task="tensor", list=["relu"], data_mode="forward", extra_info=False):
        train_step(model, x)
    assert list(dump_of().records) == ["Functional.relu.0.forward"]
    assert files_in(DUMP / "step0" / "rank") == ["dump.json", "dump_tensor_data", "run.json"]


def test_an_unknown_argument_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r'unknown argument "summry_mode"; did you mean "summary_mode"\?'):
        tensorprobe.capture(None, DUMP, summry_mode="md5")


def test_an_exception_leaves_a_complete_dump_and_nothing_installed() -> None:
    model, x = make_net()
    original = torch.nn.Module.__call__
    with pytest.raises(RuntimeError), tensorprobe.capture(model, DUMP):
        model(x)
        model(x[:, :, :1])
    assert torch.nn.Module.__call__ is original and torch._C._len_torch_function_stack() == 0
    records = dump_of().records
    assert "RuntimeError" in records["Module.Net.forward.1"]["failed"]
    assert "output" in records["Module.Net.forward.0"]


def test_single_points_can_be_saved() -> None:
    model, x = make_net()
    with tensorprobe.capture(model, DUMP) as run:
        run.save(x, "x")
    assert list(dump_of().read("debug.json")["data"]) == ["x.0.debug"]


def test_a_block_in_which_nothing_happens_leaves_nothing() -> None:
    model, _ = make_net()
    with tensorprobe.capture(model, DUMP):
        pass
    assert not (DUMP / "step0").exists()


def test_a_context_is_used_once() -> None:
    model, _ = make_net()
    run = tensorprobe.capture(model, DUMP)
    with run:
        pass
    with pytest.raises(UsageError, match="this debugger is closed"), run:
        pass


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes a torch.nn.Module, a mindspore.nn.Cell, or a list of them, not str"):
        tensorprobe.capture("model", DUMP)


def test_filtered_steps_leave_nothing() -> None:
    model, x = make_net()
    with tensorprobe.capture(model, DUMP, step=[1]) as run:
        for _ in range(3):
            train_step(model, x)
            run.step()
    assert files_in(DUMP) == ["step1"]
