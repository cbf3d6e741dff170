"""The variables and options that ask for a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.errors import ConfigError
from tensorprobe.launch.setting import VARIABLES, LaunchSetting


def test_without_a_file_it_is_level_mix_and_the_first_three_steps() -> None:
    config = LaunchSetting().load()
    assert (config.level, config.task, config.step) == ("mix", "statistics", frozenset({0, 1, 2}))


def test_with_a_file_it_is_what_the_file_says_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"task": "tensor", "level": "L0"}')
    assert LaunchSetting(str(path)).load().step == frozenset()
    config = LaunchSetting(str(path), level="L1", step="0,4-5").load()
    assert (config.level, config.task, config.step) == ("L1", "tensor", frozenset({0, 4, 5}))


def test_all_steps_can_be_asked_for() -> None:
    assert LaunchSetting(step="all").load().step == frozenset()


def test_what_is_written_into_variables_is_read_from_them_with_paths_that_hold_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setting = LaunchSetting("config.json", "L1", "tensor", "3", "call", "out")
    variables = setting.as_environment()
    assert set(variables) == set(VARIABLES)
    assert variables["TENSORPROBE"] == str(tmp_path / "config.json")
    assert LaunchSetting.from_environment(variables).output == str(tmp_path / "out")
    assert LaunchSetting.from_environment({"TENSORPROBE_LEVEL": ""}) == LaunchSetting()


def test_level_debug_is_refused_because_the_program_gives_nothing() -> None:
    with pytest.raises(
        ConfigError, match=r'level "debug" records what a program gives to debugger.save.*L0, L1 or mix'
    ):
        LaunchSetting(level="debug").load()


def test_a_wrong_end_of_steps_names_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="step-at 'never' is not one of auto, backward, call"):
        LaunchSetting(step_at="never").load_step_at()
