"""Where in the user's program a call was made."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tensorprobe.capture.stack import Stack, StackTable


def make() -> StackTable:
    def caller_of(path: str) -> str | None:
        return "optimizer" if path.endswith("optimizer.py") else None

    return StackTable(lambda path: "noise" in path, caller_of)


def here() -> FrameType:
    return sys._getframe(1)


def test_a_stack_is_innermost_first_with_file_line_function_and_source() -> None:
    stack = make().capture(here(), None)
    assert stack.frames[0] == (
        f"File {__file__}, line {here().f_lineno - 2}, in "
        "test_a_stack_is_innermost_first_with_file_line_function_and_source, \n stack = make().capture(here(), None)"
    )
    assert len(stack.frames) > 1 and stack.caller is None


def test_one_place_is_one_stack() -> None:
    table = make()
    first, second = (table.capture(here(), None) for _ in range(2))
    third = table.capture(here(), None)
    assert first is second and third is not first and third.id != first.id


def test_noise_and_the_frames_of_the_tool_itself_are_left_out() -> None:
    namespace = {"capture": make().capture, "here": here}
    source = "def f():\n    return capture(here(), None)"
    exec(compile(source, "/lib/noise/call.py", "exec"), namespace)
    own = str(Path(sys.modules[Stack.__module__].__file__ or "").with_name("made_up.py"))
    exec(compile("def g(f):\n    return f()", own, "exec"), namespace)
    frames = namespace["g"](namespace["f"]).frames
    assert frames[0].startswith(f"File {__file__}")
    assert not any("/lib/noise" in frame or "made_up" in frame for frame in frames)


def test_a_frame_without_source_works() -> None:
    namespace = {"capture": make().capture, "here": here}
    exec("def f():\n    return capture(here(), None)", namespace)
    assert namespace["f"]().frames[0] == "File <string>, line 2, in f, \n "


def test_the_caller_is_the_part_of_the_framework_that_made_the_call() -> None:
    namespace = {"capture": make().capture, "here": here}
    exec(compile("def f():\n    return capture(here(), None)", "/lib/optimizer.py", "exec"), namespace)
    assert namespace["f"]().caller == "optimizer"


def caller_of_call(*places: tuple[str, str]) -> str | None:
    """The caller of a call that is made through these functions, outermost first, each a path and a name."""
    names = {"capture": make().capture, "here": here}
    called = "capture(here(), None)"
    for path, function in reversed(places):
        exec(compile(f"def {function}():\n    return {called}", path, "exec"), names)
        called = f"{function}()"
    stack: Stack = eval(called, names)
    return stack.caller


def test_what_a_trainer_adds_up_for_its_log_is_told_from_the_training() -> None:
    trainer = "/packages/transformers/trainer.py"
    log = "/packages/lightning/pytorch/trainer/connectors/logger_connector/result.py"
    assert caller_of_call((trainer, "_run_epoch")) == "logging"
    assert caller_of_call((trainer, "_run_epoch"), (trainer, "training_step")) is None
    assert caller_of_call((trainer, "_run_epoch"), ("/packages/model.py", "forward")) is None
    assert caller_of_call(("/packages/model.py", "training_step"), (log, "update")) == "logging"
    assert caller_of_call((log, "update"), ("/packages/torchmetrics/metric.py", "to")) == "logging"


def test_inside_a_module_call_the_walk_ends_and_goes_on_with_the_stack_of_that_call() -> None:
    table = make()
    outer = table.capture(here(), None)

    def run_module() -> Stack:
        return inner()

    def inner() -> Stack:
        return table.capture(here(), outer)

    table.set_boundary(run_module.__code__)
    frames = run_module().frames
    assert "in inner" in frames[0] and frames[1:] == outer.frames


def test_the_frame_of_a_caller_can_be_asked_for() -> None:
    frame = sys._getframe(0)
    assert frame is not None and frame.f_code.co_name == "test_the_frame_of_a_caller_can_be_asked_for"


def frames_of(source: str, path: str, **names: Any) -> tuple[str, ...]:
    """The stack of a call in a text that was compiled under this path."""
    namespace = {"capture": make().capture, "here": here, **names}
    exec(compile(source, path, "exec"), namespace)
    frames: tuple[str, ...] = namespace["f"]().frames
    return frames


CALL = "def f():\n    return capture(here(), None)\n"


def test_the_cell_of_a_notebook_has_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/tmp/ipykernel_4711/1234567890.py"  # IPython puts the text of a cell into linecache, without a time
    monkeypatch.setitem(linecache.cache, path, (len(CALL), None, CALL.splitlines(True), path))
    assert frames_of(CALL, path)[0] == f"File {path}, line 2, in f, \n return capture(here(), None)"


def test_what_runs_a_cell_and_what_is_around_it_are_left_out() -> None:
    namespace = {"capture": make().capture, "here": here}
    exec(compile(CALL, "<ipython-input-1-abc>", "exec"), namespace)
    runner = "def run_code(f):\n    return f()\ndef launch(f):\n    return run_code(f)"
    exec(compile(runner, "/lib/IPython/core/interactiveshell.py", "exec"), namespace)
    assert namespace["launch"](namespace["f"]).frames == ("File <ipython-input-1-abc>, line 2, in f, \n ",)


def test_the_machinery_that_starts_a_program_is_left_out_and_frozen_programs_are_not() -> None:
    for path, is_shown in (("<frozen runpy>", False), ("<frozen importlib._bootstrap>", False), ("<frozen app>", True)):
        assert any(path in frame for frame in frames_of(CALL, path)) == is_shown


def test_a_module_that_was_changed_and_loaded_again_shows_the_new_source(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    for line in ("return capture(here(), None)  # first", "return capture(here(), None)  # the second"):
        path.write_text(f"def f():\n    {line}\n")
        assert frames_of(path.read_text(), str(path))[0].endswith(f"\n {line}")


def test_the_source_comes_from_the_loader_where_there_is_no_file() -> None:
    class Loader:
        def get_source(self, name: str) -> str:
            return CALL

    path = "/app.pyz/inner.py"
    names = {"__file__": path, "__name__": "inner", "__loader__": Loader()}
    assert frames_of(CALL, path, **names)[0].endswith("\n return capture(here(), None)")


def test_the_source_of_the_module_around_it_is_not_taken_for_that_of_a_text() -> None:
    names = {"__file__": __file__, "__name__": __name__, "__loader__": __loader__}
    assert frames_of(CALL, "template.html", **names)[0] == "File template.html, line 2, in f, \n "


def test_a_loader_that_fails_costs_the_source_line_and_nothing_else() -> None:
    class Loader:
        def get_source(self, name: str) -> str:
            raise ZeroDivisionError

    path = "/broken.pyz/inner.py"
    names = {"__file__": path, "__name__": "inner", "__loader__": Loader()}
    assert frames_of(CALL, path, **names)[0] == f"File {path}, line 2, in f, \n "
