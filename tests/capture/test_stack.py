"""Where in the user's program a call was made."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

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
