"""The variables that ask for a recording, and the configuration that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.errors import ConfigError
from tensorprobe.launch.step_cut import STEP_ATS, StepAt

CONFIG = "TENSORPROBE"
LEVEL, TASK, STEP = "TENSORPROBE_LEVEL", "TENSORPROBE_TASK", "TENSORPROBE_STEP"
OUTPUT, STEP_AT = "TENSORPROBE_OUTPUT", "TENSORPROBE_STEP_AT"
VARIABLES = (CONFIG, LEVEL, TASK, STEP, STEP_AT, OUTPUT)

DEFAULT_LEVEL = "mix"
DEFAULT_STEP = "0-2"
ALL_STEPS = "all"


@dataclass(frozen=True)
class LaunchSetting:
    """What somebody wrote, on the command line or into variables; None is what was left out."""

    config_path: str | None = None
    level: str | None = None
    task: str | None = None
    step: str | None = None
    step_at: str | None = None
    output: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LaunchSetting:
        """An empty variable is one that is not set."""
        return cls(**{field: environment.get(name) or None for field, name in zip(_FIELDS, VARIABLES, strict=True)})

    def as_environment(self) -> dict[str, str]:
        """The same as variables, with paths that hold in any working directory."""
        values = {name: getattr(self, field) for field, name in zip(_FIELDS, VARIABLES, strict=True)}
        for name in (CONFIG, OUTPUT):
            values[name] = None if values[name] is None else os.path.abspath(values[name])  # noqa: PTH100  as it is
        return {name: value for name, value in values.items() if value is not None}

    def load(self) -> CaptureConfig:
        """The configuration. Without a file, level mix and the first three steps: a program may make very many."""
        has_file = self.config_path is not None
        config = load_config(
            self.config_path,
            task=self.task,
            dump_path=self.output,
            level=self.level or (None if has_file else DEFAULT_LEVEL),
            step=self._read_steps(has_file),
        )
        if config.level == "debug":
            raise ConfigError(
                'level "debug" records what a program gives to debugger.save, and this one gives nothing: '
                "use L0, L1 or mix"
            )
        return config

    def load_step_at(self) -> StepAt:
        """Where steps end."""
        if self.step_at is not None and self.step_at not in STEP_ATS:
            raise ConfigError(f"step-at {self.step_at!r} is not one of {', '.join(STEP_ATS)}")
        return self.step_at or "auto"

    def _read_steps(self, has_file: bool) -> list[str] | None:
        if self.step == ALL_STEPS:
            return []
        if self.step is None:
            return None if has_file else [DEFAULT_STEP]
        return [part.strip() for part in self.step.split(",")]


_FIELDS = ("config_path", "level", "task", "step", "step_at", "output")
