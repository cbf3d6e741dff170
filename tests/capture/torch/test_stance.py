"""`compiled="eager"`: compiled functions are recorded as they were written, and stay compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe.errors import ConfigError
from tensorprobe.pytorch import PrecisionDebugger
from tests.capture.torch.dump import only_step

needs_stance = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch before 2.6 has no stances")


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    PrecisionDebugger.reset()
    torch._dynamo.reset()


class Counted:
    """A backend that counts the graphs that it compiles, and how often compiled code has run."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


class Doubled(nn.Module):
    """A module of the user's own: torch compiles those of its library only as part of one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * 2


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def compilations() -> tuple[Any, ...]:
    counters = torch._dynamo.utils.counters
    return dict(counters["frames"]), dict(counters["stats"]), dict(counters["graph_break"])


@needs_stance
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_calls_inside_a_compiled_model_are_recorded_as_without_torch_compile(tmp_path: Path, level: str) -> None:
    x = torch.randn(3, 4)
    names = []
    for number, model in enumerate([make_model(), torch.compile(make_model(), backend=Counted())]):
        with tensorprobe.capture(model, tmp_path / str(number), level=level, compiled="eager"):
            model(x).sum().backward()
        names.append(list(only_step(tmp_path / str(number)).records))
    assert names[0] == names[1] and len(names[0]) > 6
    assert only_step(tmp_path / "1").read("run.json")["coverage"]["unseen"] == {}


@needs_stance
def test_recorded_steps_run_eagerly_and_the_others_run_the_code_compiled_before(tmp_path: Path) -> None:
    backend = Counted()
    model = torch.compile(make_model(), backend=backend)
    x = torch.randn(3, 4)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", step=[1], compiled="eager")
    runs, states = [], []
    for _ in range(4):
        debugger.start(model)
        model(x).sum().backward()
        debugger.stop()
        debugger.step()
        runs.append(backend.runs)
        states.append(compilations())
    assert runs == [1, 1, 2, 3]
    assert backend.graphs == 1
    assert states[0] == states[1] == states[2] == states[3]
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step1"]


@needs_stance
def test_the_stance_of_the_program_is_in_force_again_after_stop(tmp_path: Path) -> None:
    from torch._dynamo import eval_frame

    debugger = PrecisionDebugger(dump_path=tmp_path, compiled="eager")
    with torch.compiler.set_stance("eager_on_recompile"):
        debugger.start()
        assert eval_frame._stance.stance == "force_eager"
        debugger.stop()
        assert eval_frame._stance.stance == "eager_on_recompile"
    debugger.start()
    torch.compiler.set_stance("fail_on_recompile")
    debugger.stop()
    assert eval_frame._stance.stance == "fail_on_recompile", "what the program chose inside the window is kept"
    torch.compiler.set_stance("default")


@needs_stance
def test_a_stance_of_the_program_that_ends_after_the_window_does_not_bring_ours_back(tmp_path: Path) -> None:
    from torch._dynamo import eval_frame

    backend = Counted()
    model = torch.compile(make_model(), backend=backend)
    debugger = PrecisionDebugger(dump_path=tmp_path, compiled="eager")
    debugger.start()
    with torch.compiler.set_stance("eager_on_recompile"):
        debugger.stop()
        assert eval_frame._stance.stance == "eager_on_recompile"
    model(torch.ones(3, 4))
    assert backend.runs == 1 and eval_frame._stance.stance == "default"


@needs_stance
@pytest.mark.parametrize("ends_by", ["exception in capture", "exception before stop"])
def test_the_stance_is_the_programs_again_after_an_exception(tmp_path: Path, ends_by: str) -> None:
    from torch._dynamo import eval_frame

    model = torch.compile(make_model(), backend=Counted())
    if ends_by == "exception in capture":
        with pytest.raises(RuntimeError), tensorprobe.capture(model, tmp_path, level="mix", compiled="eager"):
            model(torch.ones(3, 5))
    else:
        debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", compiled="eager")
        debugger.start(model)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        PrecisionDebugger.reset()
    assert eval_frame._stance.stance == "default"


@needs_stance
def test_a_module_that_was_compiled_in_place_is_recorded_inside(tmp_path: Path) -> None:
    model, backend = Doubled(), Counted()
    model.compile(backend=backend)
    with tensorprobe.capture(model, tmp_path, level="mix", compiled="eager"):
        model(torch.randn(3, 4))
    assert "Module.fc.Linear.forward.0" in only_step(tmp_path).records
    model(torch.randn(3, 4))
    assert backend.runs == 1


@needs_stance
def test_run_json_says_that_compiled_functions_ran_eagerly(tmp_path: Path) -> None:
    for mode in ("eager", "boundary"):
        with tensorprobe.capture(None, tmp_path / mode, compiled=mode):
            torch.ones(2)
    assert only_step(tmp_path / "eager").read("run.json")["compiled"] == "eager"
    assert "compiled" not in only_step(tmp_path / "boundary").read("run.json")


def test_a_torch_without_stances_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.compiler, "set_stance", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(dump_path=tmp_path, compiled="eager")
    assert str(caught.value) == (
        'compiled "eager" needs torch.compiler.set_stance, which torch 2.5.1 does not have: use torch 2.6 or newer, or '
        "start the program with TORCHDYNAMO_DISABLE=1, which compiles nothing at all"
    )


def test_by_default_a_compiled_call_is_one_record_and_the_log_says_once_how_to_look_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tensorprobe")
    model = torch.compile(make_model(), backend=Counted())
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(2):
        debugger.start()
        model(torch.ones(3, 4))
        debugger.stop()
        debugger.step()
    hint = 'not seen: compiled region; to look inside compiled functions, record with "compiled": "eager"'
    assert [text for text in caplog.messages if text.startswith("not seen")] == [hint]
    assert [name for name in only_step(tmp_path).records if name.startswith("Jit")] == ["Jit.Sequential.0.forward"]
