"""What `tensorprobe run` becomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tensorprobe.errors import UsageError
from tensorprobe.launch.command import find_command, make_environment
from tensorprobe.launch.setting import LaunchSetting


def test_a_script_a_module_and_a_launcher_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch(mode=0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "launcher").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_command(["train.py", "-m", "x"])[-3:] == ["train.py", "-m", "x"]
    assert find_command(["train.py"])[0] == find_command(["-m", "package"])[0] == sys.executable
    assert find_command(["-m", "package", "-o"])[-3:] == ["-m", "package", "-o"]
    assert find_command(["launcher", "train.py"]) == [str(tmp_path / "bin" / "launcher"), "train.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "there is no file nowhere.py here"),
        (["--levle", "L1", "train.py"], "there is no option --levle: write tensorprobe run"),
        ([], "what is to run is missing: write tensorprobe run"),
        (["-m"], "what is to run is missing: write tensorprobe run"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_command(arguments)


def test_variables_of_an_earlier_recording_do_not_reach_the_program() -> None:
    inherited = {"TENSORPROBE_TASK": "tensor", "HOME": "/home"}
    environment = make_environment(LaunchSetting(level="L0"), inherited)
    assert "TENSORPROBE_TASK" not in environment and environment["TENSORPROBE_LEVEL"] == "L0"
    assert environment["HOME"] == "/home" and environment["TENSORPROBE_ROOT"] == str(os.getpid())
