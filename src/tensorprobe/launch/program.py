"""This process, once the program in it has imported a framework: it is recorded, unless it records itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

import tensorprobe_start
from tensorprobe.capture import process
from tensorprobe.capture.context import is_adapter_loaded, make_framework
from tensorprobe.capture.program import ProgramWatch
from tensorprobe.config.api_list import load_api_list
from tensorprobe.launch.session import LaunchedSession
from tensorprobe.launch.setting import LaunchSetting
from tensorprobe.launch.step_cut import StepCut
from tensorprobe.model.count import count_noun
from tensorprobe.model.url import make_absolute, show_location

_launches: list[Launch] = []


class Launch:
    """The recording of one framework's part of the program."""

    def __init__(self, framework: str, setting: LaunchSetting) -> None:
        config, step_at = setting.load(), setting.load_step_at()
        self.framework = framework
        self.cut = StepCut(make_watch(framework), step_at, self._give_up)
        self.cut.before_first = lambda: _keep_only(self)
        api_list = load_api_list(config.api_yaml) if config.api_yaml is not None else None
        self.session = LaunchedSession(config, make_framework(framework, api_list), self.cut.roots)
        self.output = make_absolute(config.dump_path)
        self.cut.install(self.session)

    def leave(self) -> None:
        """Nothing more is recorded."""
        self.cut.remove()
        self.session.close()

    def _give_up(self, error: Exception) -> None:
        tensorprobe_start.refuse(str(error), f"this program is not recorded any more: {error}")
        self.leave()

    def describe(self) -> str | None:
        """What was recorded, in one line."""
        steps = self.session.recorded_steps
        if not steps or self.session.recorded_rank not in (None, 0):
            return None
        is_gapless = steps[-1] - steps[0] == len(steps) - 1
        many = (
            f"steps {steps[0]} to {steps[-1]}" if is_gapless else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
        )
        words = f"step {steps[0]}" if len(steps) == 1 else many
        return _describe_dump(words, show_location(self.output))

    def explain(self) -> str | None:
        """Why nothing was recorded."""
        if not self.cut.has_begun:
            return None
        if self.session.unwritten_steps:
            return f"{show_location(self.output)} could not be written: make it writable, free space, or choose another"
        step = self.session.current_step
        return (
            f"the program has made {count_noun(step + 1, 'step')}, and none of those that were asked for; "
            "--step or TENSORPROBE_STEP chooses others"
        )


def begin_program(framework: str, tell_output: Callable[[str], None]) -> None:
    """The program has imported a framework. The first whose models are called is recorded. `tell_output` is told where
    the dump goes, before there is anything of it."""
    setting = LaunchSetting.from_environment(os.environ)
    if is_adapter_loaded():  # its torch is MindSpore: the same process, written otherwise
        framework = "mindspore"
        _drop(lambda launch: not launch.cut.has_begun)
    if any(launch.cut.has_begun or launch.framework == framework for launch in _launches):
        return
    tell_output(show_location(make_absolute(setting.load().dump_path)))
    if not _launches:
        process.tell_of_sessions(_leave_to_program)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_leave_forked)
    _launches.append(Launch(framework, setting))


def make_watch(framework: str) -> ProgramWatch:
    """What sees the steps of a program, in its framework."""
    if framework == "torch":
        from tensorprobe.capture.torch.program import TorchProgram

        return TorchProgram()
    from tensorprobe.capture.mindspore.program import MindSporeProgram

    return MindSporeProgram()


def describe_recording() -> str | None:
    """What this process has recorded; None for nothing."""
    return next((text for launch in _launches if (text := launch.describe())), None)


def describe_children(output: str) -> str:
    """The same, where only processes that the program has started have recorded."""
    return _describe_dump("processes that the program started,", output)


def _describe_dump(what: str, output: str) -> str:
    return f"recorded {what} in {output}. Next: tensorprobe show {shlex.quote(output)}"


def explain_silence() -> str | None:
    """Why it has recorded nothing; None if no model was called."""
    return next((text for launch in _launches if (text := launch.explain())), None)


def _keep_only(chosen: Launch) -> None:
    _drop(lambda launch: launch is not chosen)


def _drop(is_dropped: Callable[[Launch], bool]) -> None:
    for launch in [launch for launch in _launches if is_dropped(launch)]:
        launch.leave()
        _launches.remove(launch)


def _leave_to_program(session: process.Recording) -> None:
    """The program has made a session of its own."""
    if isinstance(session, LaunchedSession) or not _launches:
        return
    for launch in _launches:
        launch.leave()
    tensorprobe_start.refuse(
        "the program uses tensorprobe itself",
        "this program uses tensorprobe itself, and is left to it: "
        "the options of tensorprobe run, and the variables TENSORPROBE…, have no effect",
    )


def _leave_forked() -> None:
    """A child that was forked in the middle of a recording, such as a worker that loads data, is none of it."""
    for launch in _launches:
        if launch.cut.has_begun:
            launch.cut.remove()
