"""`tensorprobe init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.config.known_key import COMMON_READERS, SECTION_READERS
from tensorprobe.config.template import EXPLANATIONS
from tests.cli.command import run_here


def test_the_file_loads_and_says_what_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    done = run_here(capsys, "init", file)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"written: {file}")
    assert load_config(file) == CaptureConfig()


def test_every_key_is_in_the_file_with_a_comment_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(capsys, "init", tmp_path / "config.yaml")
    lines = (tmp_path / "config.yaml").read_text().splitlines()
    for key in (*COMMON_READERS, *SECTION_READERS):
        place = next(number for number, line in enumerate(lines) if line.strip().startswith(f"{key}: "))
        assert lines[place - 1].strip().startswith("# ")
        assert key in EXPLANATIONS, f"say what {key} does in config/template.py"


def test_without_a_path_it_is_config_yaml_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(capsys, "init").returncode == 0
    assert (tmp_path / "config.yaml").is_file()


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_the_comments_show_the_calls_of_the_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], framework: str
) -> None:
    run_here(capsys, "init", tmp_path / "config.yaml", "--framework", framework)
    assert f"from tensorprobe.{framework} import PrecisionDebugger" in (tmp_path / "config.yaml").read_text()


def test_a_file_that_exists_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("level: mix")
    done = run_here(capsys, "init", file)
    assert done.returncode == 2
    assert done.stderr == f"error: {file} exists and was left as it is. Give another name, or --force to replace it\n"
    assert file.read_text() == "level: mix"
    assert run_here(capsys, "init", file, "--force").returncode == 0
    assert load_config(file).level == "L1"


def test_json_has_no_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "init", tmp_path / "config.json")
    assert done.returncode == 2
    assert "does not end in .yaml: the file has comments, which JSON has not" in done.stderr
