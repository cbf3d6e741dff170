"""`PrecisionDebugger`: one in a process, reachable through its class, and clear about what it cannot do."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from tensorprobe import ConfigError, UsageError
from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.pytorch import PrecisionDebugger
from tests.capture.torch.dump import only_step
from tests.pytorch.program import DUMP, Net, dump_of, files_in, make_net, train_step

METHODS = {
    "start": lambda: PrecisionDebugger.start(),
    "stop": lambda: PrecisionDebugger.stop(),
    "step": lambda: PrecisionDebugger.step(),
    "save": lambda: PrecisionDebugger.save(1, "one"),
    "set_init_step": lambda: PrecisionDebugger.set_init_step(1),
    "close": lambda: PrecisionDebugger.close(),
    "forward_backward_dump_end": lambda: PrecisionDebugger.forward_backward_dump_end(),
}


def config_of(debugger: PrecisionDebugger):
    return debugger._session.config


def test_without_arguments_it_records_statistics_of_apis_in_dump_path() -> None:
    config = config_of(PrecisionDebugger())
    assert (config.task, config.level, config.dump_path) == ("statistics", "L1", Path("dump_path"))


def test_arguments_win_over_the_file() -> None:
    Path("config.json").write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": "a", "step": [1]}))
    config = config_of(PrecisionDebugger("./config.json", "statistics", "b", "mix", [2]))
    assert (config.task, config.level, str(config.dump_path), set(config.step)) == ("statistics", "mix", "b", {2})


def test_a_second_construction_without_arguments_gives_the_existing_debugger() -> None:
    assert PrecisionDebugger(dump_path="dump", level="mix") is PrecisionDebugger()


def test_a_second_construction_with_the_same_arguments_gives_the_existing_debugger() -> None:
    first = PrecisionDebugger(dump_path="dump", level="mix", step=[0, 1])
    assert PrecisionDebugger(dump_path=Path("dump"), level="mix", step=["0-1"]) is first
    assert PrecisionDebugger(level="mix") is first


def test_a_second_construction_with_the_same_file_gives_the_existing_debugger() -> None:
    Path("config.json").write_text(json.dumps({"level": "L0"}))
    assert PrecisionDebugger("config.json") is PrecisionDebugger("./config.json")


def test_a_second_construction_with_other_arguments_is_an_error_that_says_so() -> None:
    PrecisionDebugger(dump_path="dump", level="mix", step=[0])
    with pytest.raises(UsageError) as error:
        PrecisionDebugger(dump_path="dump", level="L1", step=[3])
    assert str(error.value) == (
        "there is a PrecisionDebugger in this process already, with other options: level='L1', where it has 'mix'; "
        "step=[3], where it has [0]. Use PrecisionDebugger() or the class for the one that exists, or call "
        "PrecisionDebugger.reset() first, which completes its files, to begin anew"
    )


def test_a_second_construction_with_another_file_is_an_error_that_says_so() -> None:
    PrecisionDebugger(dump_path="dump")
    Path("config.json").write_text(json.dumps({"dump_path": "elsewhere", "async_dump": True}))
    with pytest.raises(UsageError, match=r"dump_path='elsewhere', where it has 'dump'; async_dump=True"):
        PrecisionDebugger("config.json")


TESTED_ELSEWHERE = {"compiled", "tensorboard"}
"""Not every framework and environment has them."""
KEYWORDS = {
    "rank": [0, 1],
    "async_dump": True,
    "extra_info": False,
    "scope": ["Tensor.sin.0.forward", "Tensor.cos.0.forward"],
    "list": ["relu"],
    "data_mode": ["forward"],
    "summary_mode": "md5",
    "tensor_list": ["relu"],
    "api_yaml": "apis.yaml",
    "on_nonfinite": "stop",
    "max_disk": "1TB",
    "min_free": "1kB",
    "flight_recorder": 5,
}
POSITIONS = {"task", "dump_path", "level", "step"}


def test_every_key_of_the_configuration_is_a_keyword() -> None:
    assert KEYWORDS.keys() | POSITIONS | TESTED_ELSEWHERE == {field.name for field in dataclasses.fields(CaptureConfig)}
    Path("apis.yaml").write_text("functional: [relu]")
    config = config_of(PrecisionDebugger(dump_path="dump", **KEYWORDS))
    assert config == load_config(dump_path="dump", **KEYWORDS)
    assert all(getattr(config, name) != getattr(CaptureConfig(), name) for name in KEYWORDS)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("on_nonfinit", "on_nonfinite"), ("lst", "list"), ("dumppath", "dump_path"), ("conf_path", "config_path")],
)
def test_a_misspelt_keyword_is_an_error_that_suggests_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf'unknown argument "{wrong}"; did you mean "{right}"\?'):
        PrecisionDebugger(**{wrong: "stop"})
    PrecisionDebugger()
    with pytest.raises(ConfigError, match=rf'unknown argument "{wrong}"; did you mean "{right}"\?'):
        PrecisionDebugger(**{wrong: None})


def test_a_second_construction_with_another_keyword_is_an_error_that_says_so() -> None:
    first = PrecisionDebugger(dump_path="dump", on_nonfinite="stop")
    assert PrecisionDebugger(on_nonfinite="stop") is first
    with pytest.raises(UsageError, match=r"on_nonfinite='tensors', where it has 'stop'"):
        PrecisionDebugger(on_nonfinite="tensors")


def test_after_reset_a_debugger_with_other_options_begins_anew_and_the_files_of_the_first_are_complete() -> None:
    first = PrecisionDebugger(dump_path=DUMP, level="L1")
    first.step()
    first.start()
    torch.ones(2)
    PrecisionDebugger.reset()
    torch.ones(3)  # recorded by nobody
    second = PrecisionDebugger(dump_path="other", level="mix", step=[0])
    model, x = make_net()
    second.start(model)
    train_step(model, x)
    second.stop()
    assert second is not first and second is PrecisionDebugger()
    assert list(dump_of(step=1).records) == ["Torch.ones.0.forward"]
    assert dump_of(step=1).read("run.json")["complete"] is True
    assert "Module.Net.forward.0" in only_step(Path("other"), 0).records


def test_after_reset_there_is_no_debugger() -> None:
    PrecisionDebugger.reset()
    PrecisionDebugger(dump_path=DUMP)
    PrecisionDebugger.reset()
    PrecisionDebugger.reset()
    with pytest.raises(UsageError, match="before there is a debugger"):
        PrecisionDebugger.start()
    assert not DUMP.exists()


def test_a_wrong_argument_is_an_error_and_leaves_no_debugger_behind() -> None:
    with pytest.raises(ConfigError, match="level 'L2' is not one of L0, L1, mix, debug"):
        PrecisionDebugger(level="L2")
    assert config_of(PrecisionDebugger(level="L0")).level == "L0"


@pytest.mark.parametrize("method", METHODS)
def test_before_any_construction_every_method_is_an_error_that_says_so(method: str) -> None:
    with pytest.raises(UsageError) as error:
        METHODS[method]()
    assert str(error.value) == (
        f"PrecisionDebugger.{method}() was called before there is a debugger: construct PrecisionDebugger(...) first"
    )


def test_the_class_works_from_another_file() -> None:
    PrecisionDebugger(dump_path=DUMP, level="mix")
    Path("elsewhere.py").write_text(
        "from tensorprobe.pytorch import PrecisionDebugger\n"
        "def record(model, run):\n"
        "    PrecisionDebugger.start(model)\n"
        "    run()\n"
        "    PrecisionDebugger.save(model.fc.bias, 'bias')\n"
        "    PrecisionDebugger.stop()\n"
        "    PrecisionDebugger.step()\n"
    )
    spec = importlib.util.spec_from_file_location("elsewhere", "elsewhere.py")
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    model, x = make_net()
    elsewhere.record(model, lambda: train_step(model, x))
    assert "Module.fc.Linear.backward.0" in dump_of().records
    assert list(dump_of().read("debug.json")["data"]) == ["bias.0.debug"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_names_of_several_models_carry_their_index(kind: type) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="mix")
    first, x = make_net()
    second = Net()
    debugger.start(kind([first, second]))
    (first(x) + second(x)).sum().backward()
    debugger.stop()
    records = dump_of().records
    assert {"Module.0.conv1.Conv2d.forward.0", "Module.1.conv1.Conv2d.backward.0"} <= records.keys()
    assert {"Module.0.Net.forward.0", "Module.1.fc.Linear.parameters_grad"} <= records.keys()
    assert dump_of().parents["Module.1.fc.Linear.forward.0"] == "Module.1.Net.forward.0"


def test_a_list_of_one_model_carries_the_index_too() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L0")
    model, x = make_net()
    debugger.start([model])
    model(x)
    debugger.stop()
    assert "Module.0.conv1.Conv2d.forward.0" in dump_of().records


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_levels_that_record_modules_need_a_model(level: str) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level=level)
    with pytest.raises(UsageError) as error:
        debugger.start()
    assert str(error.value) == f"level {level} records modules: call start(model) with the model, or use level L1"
    assert not DUMP.exists()


@pytest.mark.parametrize("model", ["net", nn.Linear, [nn.Linear(1, 1), 3]], ids=["text", "class", "list"])
def test_what_is_no_model_is_refused(model: object) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    with pytest.raises(UsageError, match=r"start\(model\) takes a torch.nn.Module, or a list or tuple of them, not "):
        debugger.start(model)


def test_stop_without_start_does_nothing() -> None:
    PrecisionDebugger(dump_path=DUMP).stop()
    assert not DUMP.exists()


def test_step_without_stop_stops_first() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.start()
    torch.ones(2).sin()
    debugger.step()
    torch.ones(2).cos()
    assert list(dump_of().records) == ["Torch.ones.0.forward", "Tensor.sin.0.forward"]
    assert not (DUMP / "step1").exists()


def test_a_second_start_warns_and_the_first_window_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.start()
    torch.ones(2)
    with caplog.at_level(logging.WARNING):
        debugger.start()
    torch.ones(2)
    debugger.stop()
    assert "start() was called again without stop(); the first window goes on" in caplog.text
    assert list(dump_of().records) == ["Torch.ones.0.forward", "Torch.ones.1.forward"]


def test_steps_are_counted_whether_or_not_they_are_recorded() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.step()
    debugger.step()
    debugger.start()
    torch.ones(2)
    debugger.stop()
    assert files_in(DUMP) == ["step2"]


def test_forward_backward_dump_end_warns_and_stops() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.start()
    torch.ones(2)
    with pytest.warns(DeprecationWarning, match=r"call stop\(\) instead"):
        debugger.forward_backward_dump_end()
    torch.ones(2)
    assert list(dump_of().records) == ["Torch.ones.0.forward"]


def test_a_dump_of_an_earlier_run_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    folder = DUMP / "step0" / "rank"
    (folder / "dump_tensor_data").mkdir(parents=True)
    for name in ("dump.json", "debug.json", "dump_tensor_data/old.pt", "notes.txt"):
        (folder / name).write_text("from an earlier run")
    debugger = PrecisionDebugger(dump_path=DUMP)
    debugger.start()
    torch.ones(2)
    debugger.stop()
    assert "held an earlier run (step0/rank), which is now in" in caplog.text
    assert list(dump_of().records) == ["Torch.ones.0.forward"]
    assert not (folder / "debug.json").exists() and not (folder / "dump_tensor_data" / "old.pt").exists()
    assert (folder / "notes.txt").read_text() == "from an earlier run"


def test_a_change_of_the_working_directory_does_not_move_the_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = PrecisionDebugger(dump_path="dump")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    debugger.start()
    torch.ones(2)
    debugger.stop()
    assert (tmp_path / "dump" / "step0" / "rank" / "dump.json").exists()
    assert not (tmp_path / "work" / "dump").exists()


def run_one(debugger: PrecisionDebugger) -> None:
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.step()


def step_names() -> list[str]:
    return sorted(path.name for path in DUMP.iterdir() if path.name.startswith("step"))


def test_a_program_that_goes_on_from_a_checkpoint_says_the_number_of_its_step() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1", step=[7, 8])
    debugger.set_init_step(7)
    for _ in range(3):
        run_one(debugger)
    assert step_names() == ["step7", "step8"]


def test_a_step_that_is_not_over_ends_when_another_number_is_set() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.set_init_step(0)  # the same number: the step goes on
    assert debugger._session.is_started
    debugger.set_init_step(4)
    assert not debugger._session.is_started
    run_one(debugger)
    assert step_names() == ["step0", "step4"]
    assert all(dump_of(step).read("run.json")["complete"] for step in (0, 4))


@pytest.mark.parametrize("number", [-1, 1.0, "2", True, None])
def test_a_step_has_no_other_numbers_than_whole_ones(number: object) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    with pytest.raises(UsageError) as raised:
        debugger.set_init_step(number)  # type: ignore[arg-type]
    assert str(raised.value) == f"set_init_step(step) takes a whole number that is not negative, not {number!r}"


def test_close_completes_the_files_and_says_which_error_ended_the_program() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.close(ValueError("no more"))
    PrecisionDebugger.save(x, "x")  # in the code of a model: it goes on without a debugger
    run = dump_of().read("run.json")
    assert run["ended"] == "ValueError: no more" and not run["complete"]
    assert PrecisionDebugger(dump_path="other") is not debugger
